"""How well a classifier does where every image has one class.

Shapes: B batch, C classes.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from labelflow.data import Batch
from labelflow.engine import Details


class Accuracy:
    """Sums over a batch, which add up over batches and processes, and the metrics made of them.

    headline: the metric that decides which weights are best, top1 or balanced.
    """

    def __init__(self, classes: Sequence[str], headline: str = "top1") -> None:
        self.classes, self.headline = classes, headline
        self._by_class: dict[str, list[float]] = {}

    def measure(self, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        """logits (B, C)"""
        likeliest = logits.topk(min(5, logits.shape[1])).indices  # (B, 5)
        right = likeliest == batch.labels[:, None]
        losses = F.cross_entropy(logits, batch.labels, reduction="none")
        hits = right[:, 0] * batch.weights
        return {
            "top1": hits.sum(),
            "top5": (right.any(1) * batch.weights).sum(),
            "loss": (losses * batch.weights).sum(),
            "samples": batch.weights.sum(),
            "class_right": self._per_class(batch.labels, hits),
            "class_images": self._per_class(batch.labels, batch.weights),
            "class_answers": self._per_class(likeliest[:, 0], batch.weights),
        }

    def _per_class(self, labels: Tensor, values: Tensor) -> Tensor:
        """Sums (C,) of values (B,)."""
        is_of = labels[:, None] == torch.arange(len(self.classes), device=labels.device)  # (B, C)
        return (is_of * values[:, None]).sum(0)

    def metrics(self, sums: dict[str, Tensor]) -> dict[str, float]:
        """Accuracies in percent, and the mean loss; top-5 only where there are more than five classes, the balanced one
        where classes have different numbers of images, so that it is not the same as top-1."""
        samples = float(sums["samples"])
        if not samples:
            raise ValueError("there are no samples to evaluate on")
        shown = ("top1", "top5") if len(self.classes) > 5 else ("top1",)
        percent = {name: 100 * float(sums[name]) / samples for name in shown}
        self._by_class = {name: sums[f"class_{name}"].tolist() for name in ("right", "images", "answers")}
        recalls = [recall for recall in self._recalls() if recall is not None]
        if self.headline == "balanced" or len({images for images in self._by_class["images"] if images}) > 1:
            percent["balanced"] = sum(recalls) / len(recalls)
        return {**percent, "loss": float(sums["loss"]) / samples}

    def _recalls(self) -> list[float | None]:
        return list(map(_percent, self._by_class["right"], self._by_class["images"]))

    def details(self) -> Details:
        """Of each class, in percent: recall, of its images those that are recognised; precision, of the images that are
        taken for it those that are of it."""
        if not self._by_class:
            return {}
        precisions = map(_percent, self._by_class["right"], self._by_class["answers"])
        return {
            name: {"recall": recall, "precision": precision, "images": int(images)}
            for name, recall, precision, images in zip(
                self.classes, self._recalls(), precisions, self._by_class["images"], strict=True
            )
        }


def _percent(part: float, whole: float) -> float | None:
    return 100 * part / whole if whole else None
