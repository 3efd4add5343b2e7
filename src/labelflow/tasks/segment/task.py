"""Semantic segmentation: what the engine needs to run a recipe.

Shapes: B batch, C classes, H×W pixels.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from labelflow.data.folder import shorten
from labelflow.loss import Term
from labelflow.tasks.dense.task import Colours, DenseTask, or_none
from labelflow.tasks.recipe import KINDS, SegmentRecipe
from labelflow.tasks.segment.data import open_source
from labelflow.tasks.segment.heads import UperHead
from labelflow.tasks.segment.metrics import VOID, confusion, per_class, scores
from labelflow.tasks.segment.model import Segmenter, make_segmenter
from labelflow.tasks.segment.sliding import classify
from labelflow.tasks.segment.views import Batch, EvalBatch, eval_batches, train_batches


class Segmentation(DenseTask):
    """A segmenter of a recipe on its data."""

    headline = KINDS["segment"].headline
    open = staticmethod(open_source)
    train_loader = staticmethod(train_batches)
    eval_loader = staticmethod(eval_batches)

    def __init__(self, recipe: SegmentRecipe, tell: Callable[[str], None] = print, training: bool = True) -> None:
        super().__init__(recipe, tell, training)
        absent = self.train_source.absent if training else ()  # type: ignore[attr-defined]
        if absent:
            tell(f"classes that no mask to train on shows: {shorten(list(absent))}")

    def make_model(self) -> Segmenter:
        recipe = self.recipe
        return make_segmenter(
            recipe.backbone,
            recipe.head,
            len(self.classes),
            recipe.init,
            recipe.drop_path,
            image_size=recipe.data.crop,
            width=recipe.width,
        )

    def _prepare(self) -> None:
        super()._prepare()
        head = self.model.head
        if isinstance(head, UperHead) and not head.can_norm(self.recipe.training.micro_batch):
            raise ValueError("UperNet's batch norm sees one pixel of each image: choose a --micro-batch of 2 or more")

    def colours(self) -> tuple[Colours, Colours]:
        return self.recipe.data.mean, self.recipe.data.std

    @property
    def config(self) -> dict[str, Any]:
        """What the model can be made of again, and what must be the same when a run goes on."""
        return {"model": self.model.levels.spec, "label_names": self.classes, "samples": self.samples}

    def terms(self, student: nn.Module, batch: Batch, generator: Generator) -> list[Term]:
        found = student(batch.images)
        return [
            Term("pixels", pixel_loss(found.logits, batch.masks)),
            Term("auxiliary", pixel_loss(found.auxiliary, batch.masks), self.recipe.auxiliary),
        ]

    def measure(self, student: nn.Module, batch: EvalBatch) -> dict[str, Tensor]:
        """Counts of pixels by true and by predicted class, (C, C)."""
        classes = len(self.classes)
        counts = batch.images[0].new_zeros(classes, classes, dtype=torch.long)
        for images, masks in _of_one_size(batch):
            found = classify(lambda seen: student(seen).logits, images, self.recipe.inference)
            counts += confusion(found, masks, classes)
        return {"counts": counts}

    def metrics(self, sums: dict[str, Tensor]) -> dict[str, float]:
        """In percent."""
        self._details = {
            one.name: {"iou": or_none(one.iou), "accuracy": or_none(one.accuracy), "pixels": one.pixels}
            for one in per_class(sums["counts"], self.classes)
        }
        return scores(sums["counts"])


def pixel_loss(logits: Tensor, masks: Tensor) -> Tensor:
    """Cross-entropy, the mean over all pixels that count: (B, C, H, W), (B, H, W)"""
    losses = F.cross_entropy(logits.float(), masks, ignore_index=VOID, reduction="sum")
    return losses / (masks != VOID).sum().clamp_min(1)


def build_segmenter(recipe: SegmentRecipe, config: dict[str, Any]) -> Segmenter:
    """The model of a run, from its config, with random weights."""
    size = recipe.data.crop
    return make_segmenter(config["model"], recipe.head, len(config["label_names"]), image_size=size, width=recipe.width)


def _of_one_size(batch: EvalBatch) -> Iterator[tuple[Tensor, Tensor]]:
    """Images that can be seen at once, and their masks."""
    sizes = {image.shape for image in batch.images}
    for size in sorted(sizes):
        own = [pair for pair in zip(batch.images, batch.masks, strict=True) if pair[0].shape == size]
        images, masks = zip(*own, strict=True)
        yield torch.stack(images), torch.stack(masks)
