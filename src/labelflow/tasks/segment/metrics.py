"""How well pixels are classified, over a whole data set: sums first, ratios last.

Shapes: B batch, C classes, H×W pixels.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

VOID = 255  # pixels of this class count nowhere


class ClassScore(NamedTuple):
    """One line of the per-class table, in percent; nan where there is nothing to measure."""

    name: str
    iou: float
    accuracy: float
    pixels: int  # that are truly of this class


def confusion(predicted: Tensor, truth: Tensor, classes: int) -> Tensor:
    """Counts of pixels that add up over batches and processes, (C, C): row is the true class, column the predicted.

    >>> confusion(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 255]), classes=2).tolist()
    [[1, 1], [0, 0]]
    """
    if predicted.shape != truth.shape:
        raise ValueError(f"predictions {tuple(predicted.shape)} and masks {tuple(truth.shape)} must have one shape")
    counts = truth != VOID
    true, guess = truth[counts].long(), predicted[counts].long()
    for what, ids in (("masks", true), ("predictions", guess)):
        if len(ids) and not (ids.min() >= 0 and ids.max() < classes):
            raise ValueError(
                f"{what} hold ids from {int(ids.min())} to {int(ids.max())}, but there are {classes} classes: "
                f"0 to {classes - 1}"
            )
    return torch.bincount(true * classes + guess, minlength=classes * classes).view(classes, classes)


def scores(counts: Tensor) -> dict[str, float]:
    """mIoU, pixel accuracy and mean accuracy in percent, from (C, C) counts.

    A class that neither the masks nor the predictions have is left out of mIoU; one that the masks lack is left out of
    the mean accuracy.
    """
    if not counts.sum():
        raise ValueError("there is no pixel to evaluate on: every mask is empty, or of class 255 everywhere")
    iou, accuracy = _ratios(counts)
    return {
        "miou": 100 * float(iou.nanmean()),
        "pixel_accuracy": 100 * int(counts.diag().sum()) / int(counts.sum()),
        "mean_accuracy": 100 * float(accuracy.nanmean()),
    }


def per_class(counts: Tensor, classes: Sequence[str]) -> list[ClassScore]:
    """The scores of each class, in the order of the classes."""
    if len(classes) != len(counts):
        raise ValueError(f"{len(classes)} names of classes do not fit a table of {len(counts)}")
    iou, accuracy = _ratios(counts)
    pixels = counts.sum(1)
    return [
        ClassScore(name, 100 * float(iou[index]), 100 * float(accuracy[index]), int(pixels[index]))
        for index, name in enumerate(classes)
    ]


def _ratios(counts: Tensor) -> tuple[Tensor, Tensor]:
    """IoU and accuracy of each class, (C,) each; nan where nothing is divided by nothing."""
    counts = counts.cpu().double()  # Apple GPUs have no doubles
    hit, true, guessed = counts.diag(), counts.sum(1), counts.sum(0)
    return hit / (true + guessed - hit), hit / true
