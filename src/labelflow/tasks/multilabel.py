"""How well a classifier does where images have any number of labels, and what such a one can be trained on.

Shapes: B batch, N images, C classes.
"""

from collections.abc import Sequence

import numpy as np
import torch
from accelerate.utils import gather_object
from numpy import ndarray
from torch import Tensor

from labelflow.data import Batch
from labelflow.engine import Details
from labelflow.labels import Store
from labelflow.loss import BinaryCrossEntropy, CrossEntropy, Loss
from labelflow.targets import Target
from labelflow.tasks.recipe import Recipe


class MultiLabel:
    """Mean average precision, F1 at a probability of 0.5, and the binary cross-entropy, of all images at once: each
    process keeps the logits of its own until the end."""

    headline = "map"

    def __init__(self, classes: Sequence[str]) -> None:
        self.classes = classes
        self._seen: list[tuple[Tensor, Tensor, Tensor]] = []  # logits (B, C), labels (B, C) bool, weights (B,)
        self._details: Details = {}

    def measure(self, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        """logits (B, C)"""
        self._seen.append((logits, batch.labels > 0, batch.weights))
        losses = Loss(BinaryCrossEntropy())(logits, batch.labels)
        return {"loss": (losses * batch.weights).sum(), "samples": batch.weights.sum()}

    def metrics(self, sums: dict[str, Tensor]) -> dict[str, float]:
        """In percent but for the loss: `map`, and `macro_f1`, the means over classes that some image shows, and
        `micro_f1`, of all classes of all images together."""
        logits, labels = self._take()
        if not labels.any():
            raise ValueError("there is no label to evaluate on: no image that could be read has any")
        found = logits > 0  # a probability above 0.5
        right, given, there = ((found & labels).sum(0), found.sum(0), labels.sum(0))  # (C,) each
        precision, recall, f1 = _part(right, given), _part(right, there), _part(2 * right, given + there)
        scores = {
            "ap": average_precisions(logits, labels),
            "precision": precision,
            "recall": recall,
            "f1": f1,
        }
        self._details = {
            name: {**{key: _percent(own[column]) for key, own in scores.items()}, "images": int(there[column])}
            for column, name in enumerate(self.classes)
        }
        shown = there > 0
        return {
            "map": 100 * float(scores["ap"][shown].mean()),
            "macro_f1": 100 * float(f1[shown].mean()),
            "micro_f1": 100 * float(_part(2 * right.sum(), given.sum() + there.sum())),
            "loss": float(sums["loss"]) / float(sums["samples"]),
        }

    def details(self) -> Details:
        """Of each class at the last evaluation; None where it is undefined: precision where nothing was found, the
        others where no image shows it."""
        return self._details

    def _take(self) -> tuple[ndarray, ndarray]:
        """What all processes saw, without what does not count: logits (N, C), labels (N, C). Then it starts anew."""
        logits, labels, weights = (torch.cat(part).cpu() for part in zip(*self._seen, strict=True))
        self._seen = []
        counts = weights > 0
        parts = gather_object([(logits[counts].numpy(), labels[counts].numpy())])
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def average_precision(scores: ndarray, positive: ndarray) -> float:
    """The mean over positives (N,) of the precision among all that score at least as high (N,): no interpolation, and
    images with the same score count alike, whatever their order. nan where there is no positive.

    >>> average_precision(np.array([0.9, 0.8, 0.7]), np.array([True, False, True]))  # (1/1 + 2/3) / 2
    0.8333333333333333
    """
    every, own = np.sort(-scores), np.sort(-scores[positive])
    if not len(own):
        return float("nan")
    precision = np.searchsorted(own, own, "right") / np.searchsorted(every, own, "right")
    return float(precision.mean())


def average_precisions(scores: ndarray, positive: ndarray) -> ndarray:
    """Of each class: (N, C) each -> (C,)"""
    return np.array([average_precision(*pair) for pair in zip(scores.T, positive.T, strict=True)])


def _part(some: ndarray, every: ndarray) -> ndarray:
    """nan of nothing"""
    return np.divide(some, every, out=np.full(np.shape(every), np.nan), where=np.asarray(every) > 0)


def _percent(value: float) -> float | None:
    return None if np.isnan(value) else 100 * float(value)


def check_several_labels(recipe: Recipe, target: Target, loss: Loss) -> None:
    """Whether a recipe can be trained on images with several labels."""
    if recipe.best != "top1":
        raise ValueError(f"--best {recipe.best} is for images of one class; of several labels, the best mAP is kept")
    if isinstance(loss.costs, CrossEntropy):
        raise ValueError(
            f"the images of {recipe.data.source} have several labels, but cross-entropy is for classes that exclude "
            "one another: --loss bce, or --loss asl"
        )
    if getattr(target, "single_label", False):
        raise ValueError(
            f"the target {recipe.target} is defined for images of one class, but those of {recipe.data.source} have "
            "several: --target tl_align, transmix or plain, or, with dense labels, "
            "--target \"token_label(image_label='given')\""
        )


def check_dense_labels(several: bool, store: Store) -> None:
    """Whether stored labels are of such images as the data has."""
    if several and not store.manifest.several:
        raise ValueError(
            f"the labels {store.folder} say which one class is where, but the images have several: annotate them with "
            "the run of a classifier for several labels"
        )
    if store.manifest.several and not several:
        raise ValueError(
            f"the labels {store.folder} are of images with several labels, but these have one class each: annotate "
            "them with a classifier of one class"
        )
