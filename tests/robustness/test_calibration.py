"""Calibration and selective accuracy: the laws, naive loops written from the definitions, and the suite by hand."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from labelflow.robustness.calibration import (
    CalibrationSuite,
    calibration_error,
    reliability,
    risk_area,
    selective_accuracy,
)
from robustness.small import ColourReader, colour_set, known, values

predictions = st.lists(
    st.tuples(st.sampled_from([0.0, 1 / 15, 0.2, 0.25, 0.5, 0.9, 14 / 15, 1.0]), st.booleans()), min_size=1
)


def arrays(pairs: list[tuple[float, bool]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([confidence for confidence, _ in pairs]), np.array([correct for _, correct in pairs])


def naive_error(pairs: list[tuple[float, bool]], bins: int = 15) -> float:
    total = 0.0
    for number in range(bins):
        low, high = number / bins, (number + 1) / bins
        inside = [pair for pair in pairs if low < pair[0] <= high or (number == 0 and pair[0] == 0)]
        if inside:
            accuracy = sum(correct for _, correct in inside) / len(inside)
            confidence = sum(confidence for confidence, _ in inside) / len(inside)
            total += len(inside) / len(pairs) * abs(accuracy - confidence)
    return total


def test_confidence_equal_to_accuracy_has_no_error() -> None:
    confidence = np.repeat([0.25, 0.5, 1.0], [8, 8, 4])
    correct = np.concatenate([np.arange(8) < 2, np.arange(8) < 4, np.ones(4, bool)])
    assert calibration_error(confidence, correct) == 0
    assert [one.images for one in reliability(confidence, correct)] == [8, 8, 4]


def test_confident_and_wrong_has_error_1() -> None:
    assert calibration_error(np.ones(5), np.zeros(5, bool)) == 1
    assert risk_area(np.ones(5), np.zeros(5, bool)) == 1


@given(predictions, st.randoms())
def test_error_is_the_naive_one_in_any_order(pairs: list[tuple[float, bool]], random: object) -> None:
    expected = naive_error(pairs)
    assert calibration_error(*arrays(pairs)) == pytest.approx(expected, abs=1e-12)
    random.shuffle(pairs)  # type: ignore[attr-defined]
    assert calibration_error(*arrays(pairs)) == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.booleans(), min_size=1, max_size=30), st.randoms())
def test_selective_accuracy_is_the_naive_one(correct: list[bool], random: object) -> None:
    confidence = np.linspace(1, 0.1, len(correct))  # the most confident first
    expected = [sum(correct[:k]) / k for k in range(1, len(correct) + 1)]
    order = list(range(len(correct)))
    random.shuffle(order)  # type: ignore[attr-defined]
    found = selective_accuracy(confidence[order], np.array(correct)[order])
    np.testing.assert_allclose(found, expected)
    assert risk_area(confidence, np.array(correct)) == pytest.approx(1 - sum(expected) / len(expected))


@given(predictions, st.randoms())
def test_ties_have_no_order(pairs: list[tuple[float, bool]], random: object) -> None:
    before = selective_accuracy(*arrays(pairs))
    random.shuffle(pairs)  # type: ignore[attr-defined]
    np.testing.assert_allclose(selective_accuracy(*arrays(pairs)), before)
    assert before[-1] == pytest.approx(np.mean([correct for _, correct in pairs]))


class Confident(ColourReader):
    """Of an image of red r: class r // 40, with the logit r % 40 / 10 beside zeros."""

    def forward(self, images: Tensor) -> Tensor:
        red = (255 * images[:, 0].mean((1, 2))).round().long()
        logits = torch.zeros(len(images), self.classes)
        return logits.scatter(1, (red // 40 + self.shift)[:, None] % self.classes, (red % 40 / 10)[:, None])


def test_the_suite_by_hand(tmp_path: Path) -> None:
    images = [(0, 7), (1, 45), (2, 110), (0, 15), (1, 78), (1, 116), (2, 99), (0, 33), (2, 60), (1, 57), (2, 104)]
    evaluator = known({"exact": Confident(3), "one more": Confident(3, 1)}, "abc", tmp_path / "out")
    section = CalibrationSuite(evaluator, colour_set(tmp_path, "abc", images)).measure()
    expected: dict[str, list[float]] = {}
    for shift in (0, 1):
        pairs = []
        for label, red in images:
            logit = red % 40 / 10
            pairs.append((math.exp(logit) / (math.exp(logit) + 2), (red // 40 + shift) % 3 == label))
        pairs.sort(reverse=True)
        selective = [sum(correct for _, correct in pairs[:k]) / k for k in range(1, 12)]
        for name, value in {
            "expected calibration error (ECE)": naive_error(pairs),
            "area under the risk-coverage curve (AURC)": sum(1 - accuracy for accuracy in selective) / 11,
            "top-1 at 50% coverage": selective[6 - 1],  # of 5.5 images, rounded to even
            "top-1 at 80% coverage": selective[9 - 1],  # of 8.8
        }.items():
            expected.setdefault(name, []).append(100 * value)
    assert values(section) == {name: pytest.approx(own, rel=1e-5) for name, own in expected.items()}
    diagram, histogram, curve = (chart.lines["exact"] for chart in section.charts)
    assert sum(share for _, share in histogram) == pytest.approx(100)
    gaps = [abs(x - y) * share / 100 for (x, y), (_, share) in zip(diagram, histogram, strict=True)]
    assert sum(gaps) == pytest.approx(expected["expected calibration error (ECE)"][0], rel=1e-5)
    assert curve[-1] == (1.0, pytest.approx(100 * 9 / 11))
    assert len(curve) == 11
    assert section.notes == ["11 images in 15 bins of confidence; with so few images the ECE is biased upwards."]
