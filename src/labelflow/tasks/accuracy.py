"""How well a classifier does where every image has one class.

Shapes: B batch, C classes.
"""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from labelflow.data import Batch
from labelflow.engine import Details


class Accuracy:
    """Sums over a batch, which add up over batches and processes, and the metrics made of them."""

    headline = "top1"

    def __init__(self, classes: Sequence[str]) -> None:
        self.classes = classes

    def measure(self, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        """logits (B, C)"""
        likeliest = logits.topk(min(5, logits.shape[1])).indices == batch.labels[:, None]  # (B, 5)
        losses = F.cross_entropy(logits, batch.labels, reduction="none")
        return {
            "top1": (likeliest[:, 0] * batch.weights).sum(),
            "top5": (likeliest.any(1) * batch.weights).sum(),
            "loss": (losses * batch.weights).sum(),
            "samples": batch.weights.sum(),
        }

    def metrics(self, sums: dict[str, Tensor]) -> dict[str, float]:
        """Accuracies in percent, and the mean loss; top-5 only where there are more than five classes."""
        samples = float(sums["samples"])
        if not samples:
            raise ValueError("there are no samples to evaluate on")
        shown = ("top1", "top5") if len(self.classes) > 5 else ("top1",)
        percent = {name: 100 * float(sums[name]) / samples for name in shown}
        return {**percent, "loss": float(sums["loss"]) / samples}

    def details(self) -> Details:
        return {}
