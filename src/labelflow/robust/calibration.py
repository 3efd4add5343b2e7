"""How well a model knows what it knows: calibration error, reliability diagram, selective accuracy.

Shapes: n images. Guo et al. (2017), "On Calibration of Modern Neural Networks"; Geifman and El-Yaniv (2017),
"Selective Classification for Deep Neural Networks".
"""

from typing import NamedTuple

import numpy as np
from numpy import ndarray

from labelflow.robust.results import Chart, Finding, Section
from labelflow.robust.session import Session
from labelflow.robust.sets import Set

BINS = 15
ENOUGH = 1000  # images: with fewer, bins hold so few that chance alone makes an error of some percent
COVERAGES = (0.5, 0.8)  # of which selective accuracy is told


class Bin(NamedTuple):
    """Images of which a model is about equally sure."""

    images: int
    confidence: float  # their mean
    accuracy: float


def reliability(confidence: ndarray, correct: ndarray, bins: int = BINS) -> list[Bin]:
    """The bins that hold images, of equal widths, (low, high]. confidence: (n,) from 0 to 1; correct: (n,) bool."""
    inner = np.linspace(0, 1, bins + 1)[1:-1]
    place = np.searchsorted(inner, confidence, side="left")  # a border belongs to the bin below
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
    found = reliability(confidence, correct, bins)
    return sum(one.images * abs(one.accuracy - one.confidence) for one in found) / len(confidence)


def selective_accuracy(confidence: ndarray, correct: ndarray) -> ndarray:
    """(n,): the accuracy on the k surest images, k = 1 … n. Images of which a model is equally sure come in any order:
    each counts as their mean."""
    order = np.argsort(-confidence, kind="stable")
    _, group, sizes = np.unique(-confidence[order], return_inverse=True, return_counts=True)
    means = np.bincount(group, weights=correct[order]) / sizes
    return np.cumsum(means[group]) / np.arange(1, len(order) + 1)


def risk_area(confidence: ndarray, correct: ndarray) -> float:
    """AURC: the mean over coverages of 1 − selective accuracy"""
    return float(1 - selective_accuracy(confidence, correct).mean())


class Calibration:
    """Of the clean images."""

    def __init__(self, session: Session, own: Set) -> None:
        self.session, self.own = session, own
        self.passes = session.passes(own)

    def measure(self) -> Section:
        (answers,) = self.session.ask(self.own, title="calibration")
        pairs = [(found.confidence[0], found.correct[0]) for found in answers]
        names = [model.name for model in self.session.models]
        curves = [selective_accuracy(*pair) for pair in pairs]
        findings = [
            Finding("calibration error (ECE)", [100 * calibration_error(*pair) for pair in pairs], "%", False),
            Finding("area under risk and coverage", [100 * risk_area(*pair) for pair in pairs], "%", False),
        ]
        for coverage in COVERAGES:
            values = [100 * float(curve[max(1, round(coverage * len(curve))) - 1]) for curve in curves]
            findings.append(Finding(f"top-1 of the surest {coverage:.0%}", values))
        bins = {name: reliability(*pair) for name, pair in zip(names, pairs, strict=True)}
        diagrams = {name: [(100 * one.confidence, 100 * one.accuracy) for one in own] for name, own in bins.items()}
        images = len(pairs[0][0])
        counts = {
            name: [(100 * one.confidence, 100 * one.images / images) for one in own] for name, own in bins.items()
        }
        charts = [
            Chart(
                "Accuracy, %, by confidence (dotted: exact)",
                "confidence, %",
                diagrams,
                reference=((0.0, 0.0), (100.0, 100.0)),
            ),
            Chart("Images, %, by confidence", "confidence, %", counts),
            Chart(
                "Selective accuracy, %",
                "part of the images that is answered",
                {name: _points(curve) for name, curve in zip(names, curves, strict=True)},
            ),
        ]
        note = f"{images} images in {BINS} bins of confidence"
        note += "; with so few the calibration error comes out too high." if images < ENOUGH else "."
        return Section("calibration", "Calibration", findings, charts, notes=[note])


def _points(curve: ndarray, most: int = 100) -> list[tuple[float, float]]:
    """Of coverage and percent; the first hundredth is left out, which says little."""
    places = np.unique(np.linspace(len(curve) / most, len(curve), most).round().clip(1).astype(int))
    return [(place / len(curve), 100 * float(curve[place - 1])) for place in places]
