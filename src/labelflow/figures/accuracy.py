"""Accuracy against parameters of a set of runs (Token Labeling, Figure 1)."""

from dataclasses import dataclass

from matplotlib.figure import Figure

from labelflow.figures import results
from labelflow.figures.base import FigureRequest, colour, new, shorten
from labelflow.figures.results import Result, results_of


@dataclass(frozen=True)
class Data:
    runs: list[Result]


def compute(request: FigureRequest) -> Data:
    return Data(results_of(request.models, lambda run, recipe: run.config()["parameters"] / 1e6))


def draw(data: Data) -> Figure:
    figure, axes = new(1, 1, 7, 4.4)
    panel = axes[0, 0]
    models = list(dict.fromkeys(one.model for one in data.runs))
    results.plot_points(panel, data.runs, [colour(models.index(one.model)) for one in data.runs])
    results.name_points(panel, data.runs, [shorten(one.run) for one in data.runs])
    panel.set_xlabel("parameters, millions")
    panel.set_ylabel("top-1 accuracy, %")
    panel.margins(0.15)
    return figure


def summary(data: Data) -> str:
    return results.summary(data.runs, "M parameters")
