"""What a suite has found: numbers and curves of all models, side by side. Tables, pages and files are made from it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from numpy import ndarray

from labelflow.analysis.curves import Point


@dataclass(frozen=True)
class Finding:
    """One number of each model."""

    name: str
    values: Sequence[float]
    unit: str = "%"
    higher_is_better: bool = True

    @property
    def title(self) -> str:
        return f"{self.name}{', ' * bool(self.unit)}{self.unit} {'↑' if self.higher_is_better else '↓'}"


def uncertainty(images: int) -> str:
    """Of an accuracy: 1.96 standard errors, where they are the largest.

    >>> uncertainty(1000)
    'an accuracy is known to ± 3.1 points at worst (95 %)'
    """
    return f"an accuracy is known to ± {98 / math.sqrt(images):.1f} points at worst (95 %)"


@dataclass(frozen=True)
class Chart:
    """A line of each model."""

    title: str
    across: str  # what goes from left to right
    lines: dict[str, list[Point]]
    reach: float | None = None  # how high it is at least, to be compared with those beside it
    reference: Sequence[Point] = ()  # a line to compare with


@dataclass(frozen=True, eq=False)
class Strip:
    """What an image looks like when it is asked about, one picture after another."""

    title: str
    pictures: Mapping[str, ndarray]  # by their captions: uint8 (S, S, 3)


@dataclass(frozen=True)
class Section:
    """What one suite has found."""

    name: str
    title: str
    findings: Sequence[Finding]
    charts: Sequence[Chart] = ()
    details: Sequence[Finding] = ()  # a longer table
    notes: Sequence[str] = ()
    strips: Sequence[Strip] = ()
    more_charts: Sequence[Chart] = ()  # beside the longer table
