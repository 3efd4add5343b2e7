"""Accuracy against the part of tokens that token labels train (Token Labeling, Figure 4, left)."""

from dataclasses import dataclass
from statistics import mean

from matplotlib.figure import Figure

from labelflow.engine.run import Run
from labelflow.figures import results
from labelflow.figures.base import FigureRequest, colour, new
from labelflow.figures.results import Result, results_of
from labelflow.spec import parse
from labelflow.tasks import Recipe


@dataclass(frozen=True)
class Data:
    runs: list[Result]


def compute(request: FigureRequest) -> Data:
    return Data(results_of(request.models, participation_of))


def participation_of(run: Run, recipe: Recipe) -> float:
    """In percent."""
    name, arguments = parse(recipe.target)
    if name != "token_label":
        raise ValueError(
            f"{run.folder} trains on {recipe.target}; this figure wants runs of --target "
            "'token_label(participation=0.2)' and the like"
        )
    return 100 * float(arguments.get("participation", 1.0))


def draw(data: Data) -> Figure:
    figure, axes = new(1, 1, 6.4, 4.4)
    panel = axes[0, 0]
    for place, model in enumerate(dict.fromkeys(one.model for one in data.runs)):
        own = sorted((one for one in data.runs if one.model == model), key=lambda one: one.value)
        panel.plot(
            [one.value for one in own], [one.top1 for one in own], "o", color=colour(place), label=model.split("(")[0]
        )
        rates = list(dict.fromkeys(one.value for one in own))
        means = [mean(one.top1 for one in own if one.value == rate) for rate in rates]
        panel.plot(rates, means, color=colour(place))
    panel.set_xlabel("tokens that take part, %")
    panel.set_ylabel("top-1 accuracy, %")
    panel.legend()
    return figure


def summary(data: Data) -> str:
    return results.summary(data.runs, "participation")
