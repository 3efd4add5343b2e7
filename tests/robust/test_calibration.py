"""Calibration and selective accuracy: the laws, and naive loops written from the definitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelflow.robust.calibration import calibration_error, reliability, risk_area, selective_accuracy

answers = st.lists(
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


def test_who_is_as_often_right_as_sure_has_no_error() -> None:
    confidence = np.repeat([0.25, 0.5, 1.0], [8, 8, 4])
    correct = np.concatenate([np.arange(8) < 2, np.arange(8) < 4, np.ones(4, bool)])
    assert calibration_error(confidence, correct) == 0
    assert [one.images for one in reliability(confidence, correct)] == [8, 8, 4]


def test_who_is_sure_and_wrong_has_the_whole_error() -> None:
    assert calibration_error(np.ones(5), np.zeros(5, bool)) == 1
    assert risk_area(np.ones(5), np.zeros(5, bool)) == 1


@given(answers, st.randoms())
def test_error_is_the_naive_one_in_any_order(pairs: list[tuple[float, bool]], random: object) -> None:
    expected = naive_error(pairs)
    assert calibration_error(*arrays(pairs)) == pytest.approx(expected, abs=1e-12)
    random.shuffle(pairs)  # type: ignore[attr-defined]
    assert calibration_error(*arrays(pairs)) == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.booleans(), min_size=1, max_size=30), st.randoms())
def test_selective_accuracy_is_the_naive_one(correct: list[bool], random: object) -> None:
    confidence = np.linspace(1, 0.1, len(correct))  # the surest first
    expected = [sum(correct[:k]) / k for k in range(1, len(correct) + 1)]
    order = list(range(len(correct)))
    random.shuffle(order)  # type: ignore[attr-defined]
    found = selective_accuracy(confidence[order], np.array(correct)[order])
    np.testing.assert_allclose(found, expected)
    assert risk_area(confidence, np.array(correct)) == pytest.approx(1 - sum(expected) / len(expected))


@given(answers, st.randoms())
def test_ties_are_in_no_order(pairs: list[tuple[float, bool]], random: object) -> None:
    before = selective_accuracy(*arrays(pairs))
    random.shuffle(pairs)  # type: ignore[attr-defined]
    np.testing.assert_allclose(selective_accuracy(*arrays(pairs)), before)
    assert before[-1] == pytest.approx(np.mean([correct for _, correct in pairs]))
