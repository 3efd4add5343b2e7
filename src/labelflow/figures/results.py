"""The results of runs, for figures that compare them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes

from labelflow.engine.run import Run
from labelflow.tasks import Recipe
from labelflow.tasks.recipe import read_recipe


@dataclass(frozen=True)
class Result:
    run: str  # the name of its folder
    model: str
    top1: float  # at the last evaluation, of the average of the weights where there is one
    value: float  # what it is drawn over


def results_of(folders: Sequence[object], value: Callable[[Run, Recipe], float]) -> list[Result]:
    """Of evaluated runs, in order; `value(run, recipe)` is what a result is drawn over."""
    if not folders:
        raise ValueError("this figure compares runs: name their folders, such as runs/*")
    results = []
    for folder in map(str, folders):
        run = Run(Path(folder))
        recipe = read_recipe(run)
        evaluations = [line for line in run.metrics() if line["kind"] == "eval"]
        if not evaluations:
            raise ValueError(f"{folder} has not been evaluated yet")
        last = evaluations[-1]
        if "top1" not in last:
            raise ValueError(f"{folder} has images with several labels; this figure compares top-1 accuracies")
        top1 = last.get("ema_top1", last["top1"])
        name = Path(folder).resolve().name
        results.append(Result(name, recipe.model, top1, value(run, recipe)))
    return results


def name_points(panel: Axes, results: Sequence[Result], names: Sequence[str]) -> None:
    """Names beside their points, towards the middle; of those that share a place, every second goes below."""
    middle = (min(one.value for one in results) + max(one.value for one in results)) / 2
    for place, (one, name) in enumerate(zip(results, names, strict=True)):
        near = sum(abs(one.top1 - other.top1) < 2 and one.value == other.value for other in results[:place])
        right, below = one.value > middle, near % 2 == 1
        panel.annotate(
            name,
            (one.value, one.top1),
            (-7 if right else 7, -4 if below else 4),
            textcoords="offset points",
            ha="right" if right else "left",
            va="top" if below else "bottom",
        )


def summary(results: Sequence[Result], head: str) -> str:
    lines = [f"{'':32}{head:>14}{'top-1':>8}"]
    return "\n".join([*lines, *(f"{result.run:32}{result.value:14.4g}{result.top1:8.1f}" for result in results)])
