"""Accuracy of models with and without token labels (Token Labeling, Figure 5)."""

from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from matplotlib.figure import Figure

from labelflow.engine.run import Run
from labelflow.figures.base import FigureRequest, colour, new, shorten
from labelflow.figures.results import results_of
from labelflow.spec import parse
from labelflow.tasks import Recipe
from labelflow.tasks.recipe import read_recipe

SIDES = {"plain": "without", "token_label": "with"}  # by target


@dataclass(frozen=True)
class Pair:
    """A model, and the accuracies of its runs: one for each seed."""

    model: str
    family: str  # a panel of the figure
    parameters: float  # millions
    plain: list[float]
    labelled: list[float]


@dataclass(frozen=True)
class Data:
    pairs: list[Pair]


def compute(request: FigureRequest) -> Data:
    """Runs of the same model are paired by what they were trained on; nothing is drawn that was not run."""
    results = results_of(request.models, lambda run, recipe: run.config()["parameters"] / 1e6)
    recipes = [read_recipe(Run(Path(str(folder)))) for folder in request.models]
    sides = [_side(result.run, recipe) for result, recipe in zip(results, recipes, strict=True)]
    models = [_model(recipe) for recipe in recipes]
    pairs = []
    for model in dict.fromkeys(models):
        places = {side: [at for at in range(len(models)) if (models[at], sides[at]) == (model, side)] for side in SIDES}
        for side, own in places.items():
            if not own:
                raise ValueError(f"there is no run of {model} with --target {side} among these, to compare with")
            if len({recipes[at].mixer for at in own}) > 1:
                names = ", ".join(results[at].run for at in own)
                raise ValueError(f"{names} are mixed differently: name runs of {model} that differ in seeds only")
        plain, labelled = ([results[at].top1 for at in own] for own in places.values())
        size = mean(results[at].value for own in places.values() for at in own)
        pairs.append(Pair(model, model.split("_")[0], size, plain, labelled))
    return Data(pairs)


def _side(run: str, recipe: Recipe) -> str:
    side = parse(recipe.target).name
    if side not in SIDES:
        raise ValueError(f"{run} trains on {recipe.target}; this figure wants runs of --target {' and '.join(SIDES)}")
    return side


def _model(recipe: Recipe) -> str:
    """An LV-ViT without token labels has no classifier of tokens: it is the same model otherwise."""
    name, arguments = parse(recipe.model)
    arguments.pop("aux_head", None)
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})" if arguments else name


def draw(data: Data) -> Figure:
    families = list(dict.fromkeys(pair.family for pair in data.pairs))
    figure, axes = new(1, len(families), max(3.2, 6.4 / len(families)), 4.4)
    for panel, family in zip(axes[0], families, strict=True):
        for pair in (pair for pair in data.pairs if pair.family == family):
            means = [mean(pair.plain), mean(pair.labelled)]
            panel.plot([pair.parameters] * 2, means, color="#999999", zorder=1)
            panel.annotate(
                shorten(pair.model.split("(")[0], 18),
                (pair.parameters, max(*pair.plain, *pair.labelled)),
                (0, 7),
                textcoords="offset points",
                ha="center",
            )
            for place, tops in enumerate((pair.plain, pair.labelled)):
                panel.plot([pair.parameters] * len(tops), tops, "_", color=colour(place), zorder=2)
                panel.plot(pair.parameters, means[place], "o", color=colour(place), zorder=3)
        panel.set_title(family)
        panel.set_xlabel("parameters, millions")
        panel.margins(0.3, 0.2)
    axes[0, 0].set_ylabel("top-1 accuracy, %")
    for place, side in enumerate(SIDES.values()):
        axes[0, 0].plot([], [], "o", color=colour(place), label=f"{side} token labels")
    axes[0, 0].legend(loc="best")
    return figure


def summary(data: Data) -> str:
    lines = [f"{'':32}{'M parameters':>14}{'without':>9}{'with':>8}{'gain':>7}{'runs':>8}"]
    for pair in data.pairs:
        plain, labelled = mean(pair.plain), mean(pair.labelled)
        runs = f"{len(pair.plain)}, {len(pair.labelled)}"
        row = f"{pair.parameters:14.4g}{plain:9.1f}{labelled:8.1f}{labelled - plain:+7.1f}{runs:>8}"
        lines.append(f"{shorten(pair.model, 30):32}{row}")
    return "\n".join(lines)
