"""Segmentation metrics against counting pixel by pixel."""

import math

import pytest
import torch
from torch import Tensor

from labelflow.tasks.segment.metrics import confusion, per_class, scores


def counted(predicted: list[int], truth: list[int], classes: int) -> tuple[list[float], list[float], float]:
    """IoU and accuracy of each class, and the pixel accuracy, naively."""
    pixels = [(p, t) for p, t in zip(predicted, truth, strict=True) if t != 255]
    ious, accuracies = [], []
    for c in range(classes):
        both = sum(p == c and t == c for p, t in pixels)
        either = sum(p == c or t == c for p, t in pixels)
        true = sum(t == c for _, t in pixels)
        ious.append(both / either if either else math.nan)
        accuracies.append(both / true if true else math.nan)
    return ious, accuracies, sum(p == t for p, t in pixels) / len(pixels)


def mean(values: list[float]) -> float:
    known = [value for value in values if value == value]
    return sum(known) / len(known)


@pytest.fixture
def maps() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    predicted = torch.randint(6, (3, 7, 9), generator=generator)
    truth = torch.randint(5, (3, 7, 9), generator=generator)
    predicted[predicted == 1] = 0  # class 1 is never predicted
    truth[truth == 2] = 255  # class 2 is predicted, but nowhere; 5 likewise; 6 is in neither
    return predicted, truth


def test_scores_are_those_of_counting_pixels(maps: tuple[Tensor, Tensor]) -> None:
    predicted, truth = maps
    ious, accuracies, pixels = counted(predicted.flatten().tolist(), truth.flatten().tolist(), 7)
    found = scores(confusion(predicted, truth, 7))
    assert found == pytest.approx(
        {"miou": 100 * mean(ious), "pixel_accuracy": 100 * pixels, "mean_accuracy": 100 * mean(accuracies)}
    )
    assert ious[2] == 0
    assert math.isnan(ious[6])
    rows = per_class(confusion(predicted, truth, 7), list("abcdefg"))
    assert [row.iou / 100 for row in rows] == pytest.approx(ious, nan_ok=True)
    assert [row.accuracy / 100 for row in rows] == pytest.approx(accuracies, nan_ok=True)
    assert [row.pixels for row in rows] == [int((truth == c).sum()) for c in range(7)]


def test_counts_add_up_over_images(maps: tuple[Tensor, Tensor]) -> None:
    predicted, truth = maps
    parts = [confusion(predicted[index], truth[index], 6) for index in range(3)]
    assert torch.equal(sum(parts), confusion(predicted, truth, 6))


def test_counts_of_billions_of_pixels_are_exact() -> None:
    """More than floats of 32 bits can count."""
    counts = torch.tensor([[2**40 + 1, 2**40], [0, 0]])
    assert per_class(counts, ["a", "b"])[0].pixels == 2**41 + 1
    assert scores(counts)["pixel_accuracy"] == 100 * (2**40 + 1) / (2**41 + 1)


def test_what_does_not_fit_is_told() -> None:
    zeros = torch.zeros(4, dtype=torch.long)
    with pytest.raises(ValueError, match="from 0 to 3, but there are 3 classes"):
        confusion(zeros, torch.tensor([0, 1, 3, 255]), 3)
    with pytest.raises(ValueError, match="predictions hold ids"):
        confusion(zeros + 7, zeros, 3)
    with pytest.raises(ValueError, match="one shape"):
        confusion(zeros[:2], zeros, 3)
    with pytest.raises(ValueError, match="no pixel"):
        scores(confusion(zeros, zeros + 255, 3))
    with pytest.raises(ValueError, match="2 names"):
        per_class(confusion(zeros, zeros, 3), ["a", "b"])
