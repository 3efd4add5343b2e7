"""Calibration: expected calibration error, reliability diagram, selective accuracy.

Shapes: n images. Guo et al. (2017), "On Calibration of Modern Neural Networks"; Geifman and El-Yaniv (2017),
"Selective Classification for Deep Neural Networks".
"""

from typing import NamedTuple

import numpy as np
from numpy import ndarray

from labelflow.robustness.datasets import ImageSet
from labelflow.robustness.evaluator import Evaluator
from labelflow.robustness.results import Chart, Metric, Section

BINS = 15
ENOUGH = 1000  # images; with fewer, bins are so small that chance alone makes an ECE of several percent
COVERAGES = (0.5, 0.8)  # at which selective accuracy is reported


class Bin(NamedTuple):
    """Images with about the same confidence."""

    images: int
    confidence: float  # mean
    accuracy: float


def reliability(confidence: ndarray, correct: ndarray, bins: int = BINS) -> list[Bin]:
    """The non-empty bins, of equal width, (low, high]. confidence: (n,) from 0 to 1; correct: (n,) bool."""
    edges = np.linspace(0, 1, bins + 1)[1:-1]
    place = np.searchsorted(edges, confidence, side="left")  # an edge belongs to the bin below
    return [
        Bin(int(inside.sum()), float(confidence[inside].mean()), float(correct[inside].mean()))
        for inside in (place == number for number in range(bins))
        if inside.any()
    ]


def calibration_error(confidence: ndarray, correct: ndarray, bins: int = BINS) -> float:
    """ECE = Σ_b n_b/n · |accuracy_b − confidence_b|

    >>> calibration_error(np.array([1.0, 1.0]), np.array([False, False]))
    1.0
    """
    gaps = [one.images * abs(one.accuracy - one.confidence) for one in reliability(confidence, correct, bins)]
    return sum(gaps) / len(confidence)


def selective_accuracy(confidence: ndarray, correct: ndarray) -> ndarray:
    """(n,): the accuracy on the k most confident images, k = 1 … n. Ties have no order: each counts as their mean."""
    order = np.argsort(-confidence, kind="stable")
    _, group, sizes = np.unique(-confidence[order], return_inverse=True, return_counts=True)
    means = np.bincount(group, weights=correct[order]) / sizes
    return np.cumsum(means[group]) / np.arange(1, len(order) + 1)


def risk_area(confidence: ndarray, correct: ndarray) -> float:
    """AURC: the mean over coverages of 1 − selective accuracy"""
    return float(1 - selective_accuracy(confidence, correct).mean())


class CalibrationSuite:
    """On clean images."""

    def __init__(self, evaluator: Evaluator, dataset: ImageSet) -> None:
        self.evaluator, self.dataset = evaluator, dataset
        self.passes = evaluator.passes(dataset)

    def measure(self) -> Section:
        (predictions,) = self.evaluator.predict(self.dataset, title="calibration")
        pairs = [(own.confidence[0], own.correct[0]) for own in predictions]
        names = [model.name for model in self.evaluator.models]
        curves = [selective_accuracy(*pair) for pair in pairs]
        metrics = [
            Metric("expected calibration error (ECE)", [100 * calibration_error(*pair) for pair in pairs], "%", False),
            Metric("area under the risk-coverage curve (AURC)", [100 * risk_area(*pair) for pair in pairs], "%", False),
        ]
        for coverage in COVERAGES:
            values = [100 * float(curve[max(1, round(coverage * len(curve))) - 1]) for curve in curves]
            metrics.append(Metric(f"top-1 at {coverage:.0%} coverage", values))
        bins = {name: reliability(*pair) for name, pair in zip(names, pairs, strict=True)}
        diagrams = {name: [(100 * one.confidence, 100 * one.accuracy) for one in own] for name, own in bins.items()}
        images = len(pairs[0][0])
        counts = {
            name: [(100 * one.confidence, 100 * one.images / images) for one in own] for name, own in bins.items()
        }
        charts = [
            Chart(
                "Accuracy, %, by confidence (dotted: perfectly calibrated)",
                "confidence, %",
                diagrams,
                reference=((0.0, 0.0), (100.0, 100.0)),
            ),
            Chart("Images, %, by confidence", "confidence, %", counts),
            Chart(
                "Selective accuracy, %",
                "coverage",
                {name: _points(curve) for name, curve in zip(names, curves, strict=True)},
            ),
        ]
        note = f"{images} images in {BINS} bins of confidence"
        note += "; with so few images the ECE is biased upwards." if images < ENOUGH else "."
        return Section("calibration", "Calibration", metrics, charts, notes=[note])


def _points(curve: ndarray, most: int = 100) -> list[tuple[float, float]]:
    """(coverage, percent), without the first hundredth, which is mostly noise."""
    places = np.unique(np.linspace(len(curve) / most, len(curve), most).round().clip(1).astype(int))
    return [(place / len(curve), 100 * float(curve[place - 1])) for place in places]
