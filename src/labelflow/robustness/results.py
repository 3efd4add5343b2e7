"""The results of a suite, for all models side by side: metrics, charts, example images; as a table and as JSON."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy import ndarray
from rich.table import Column, Table
from rich.text import Text

from labelflow.classifier import Classifier
from labelflow.engine.progress import literal_console, table_console
from labelflow.files import atomic_write
from labelflow.html import Point


@dataclass(frozen=True)
class Metric:
    """One number for each model."""

    name: str
    values: Sequence[float]
    unit: str = "%"
    higher_is_better: bool = True

    @property
    def title(self) -> str:
        unit = f", {self.unit}" if self.unit else ""
        return f"{self.name}{unit} {'↑' if self.higher_is_better else '↓'}"


@dataclass(frozen=True)
class Chart:
    """One line for each model."""

    title: str
    x_label: str
    lines: dict[str, list[Point]]
    y_max: float | None = None  # the y axis reaches at least this far: charts side by side have the same scale
    reference: Sequence[Point] = ()  # a line to compare with


@dataclass(frozen=True, eq=False)
class Strip:
    """An example image under a perturbation, from level to level."""

    title: str
    images: Mapping[str, ndarray]  # by caption: uint8 (S, S, 3)


@dataclass(frozen=True)
class Section:
    """The results of one suite."""

    name: str
    title: str
    metrics: Sequence[Metric]
    charts: Sequence[Chart] = ()
    details: Sequence[Metric] = ()  # a longer table
    notes: Sequence[str] = ()
    strips: Sequence[Strip] = ()
    more_charts: Sequence[Chart] = ()  # beside the longer table


def uncertainty(images: int) -> str:
    """Of an accuracy: 1.96 standard errors at 50 %, where they are largest.

    >>> uncertainty(1000)
    'accuracies are within ± 3.1 points (95 % confidence)'
    """
    return f"accuracies are within ± {98 / math.sqrt(images):.1f} points (95 % confidence)"


def format_value(value: float) -> str:
    return f"{value:.1f}"


def print_table(models: Sequence[Classifier], sections: Sequence[Section]) -> None:
    table = Table("", *(Column(model.name, justify="right") for model in models), box=None)
    for section in sections:
        table.add_row(Text(section.title, "bold"))
        for metric in section.metrics:
            table.add_row(f"  {metric.title}", *map(format_value, metric.values))
    table_console().print(table)
    for section in sections:
        for note in section.notes:
            literal_console().print(f"{section.title}: {note}", soft_wrap=True)


def as_json(models: Sequence[Classifier], sections: Sequence[Section], settings: dict[str, Any]) -> dict[str, Any]:
    """Everything that was measured, and how."""
    names = [model.name for model in models]

    def by_model(metrics: Sequence[Metric]) -> dict[str, dict[str, float]]:
        return {metric.name: dict(zip(names, map(float, metric.values), strict=True)) for metric in metrics}

    return {
        "settings": settings,
        "models": {
            model.name: {
                "model": model.architecture,
                "weights": model.weights,
                "classes": len(model.classes),
                "image_size": model.preprocessing.size,
                "key": model.key,
            }
            for model in models
        },
        "suites": {
            section.name: {
                "metrics": by_model(section.metrics),
                "details": by_model(section.details),
                "curves": {
                    chart.title: {"x_label": chart.x_label, "lines": chart.lines}
                    for chart in (*section.charts, *section.more_charts)
                },
                "notes": list(section.notes),
            }
            for section in sections
        },
    }


def write_json(path: Path, results: dict[str, Any]) -> None:
    with atomic_write(path) as draft:
        draft.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
