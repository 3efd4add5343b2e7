"""What a suite has found: numbers and curves of all models, side by side. Tables, pages and files are made from it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

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


@dataclass(frozen=True)
class Chart:
    """A line of each model."""

    title: str
    across: str  # what goes from left to right
    lines: dict[str, list[Point]]


@dataclass(frozen=True)
class Section:
    """What one suite has found."""

    name: str
    title: str
    findings: Sequence[Finding]
    charts: Sequence[Chart] = ()
    details: Sequence[Finding] = ()  # a longer table
    notes: Sequence[str] = field(default=())
