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


def plot_points(panel: Axes, results: Sequence[Result], colours: Sequence[str]) -> None:
    """Runs as points. One that would cover others is a ring around them."""
    for place, (one, colour) in enumerate(zip(results, colours, strict=True)):
        covered = _near(results, place, POINT)
        size, fill = 6 + 5 * covered, "none" if covered else colour
        panel.plot(one.value, one.top1, "o", ms=size, mfc=fill, mew=1.5, color=colour)


def name_points(panel: Axes, results: Sequence[Result], names: Sequence[str]) -> None:
    """Names beside their points, towards the middle; those that share a place go above and below it in turn."""
    middle = (min(one.value for one in results) + max(one.value for one in results)) / 2
    for place, (one, name) in enumerate(zip(results, names, strict=True)):
        far, below = divmod(_near(results, place, LINE), 2)
        right, away = one.value > middle, 4 + far * 15 * (1 + name.count("\n"))
        panel.annotate(
            name,
            (one.value, one.top1),
            (-7 if right else 7, -away if below else away),
            textcoords="offset points",
            ha="right" if right else "left",
            va="top" if below else "bottom",
        )


POINT, LINE = 0.03, 0.07  # what a point and a line of text take up of a panel's height, or a little more


def _near(results: Sequence[Result], place: int, part: float) -> int:
    """How many of the results before a place are within that part of the panel's height and 2 % of its width."""
    one = results[place]
    heights, widths = ([getattr(each, name) for each in results] for name in ("top1", "value"))
    high, wide = max(heights) - min(heights), max(widths) - min(widths)
    return sum(
        abs(one.top1 - other.top1) <= part * high and abs(one.value - other.value) <= 0.02 * wide
        for other in results[:place]
    )


def summary(results: Sequence[Result], head: str) -> str:
    lines = [f"{'':32}{head:>14}{'top-1':>8}"]
    return "\n".join([*lines, *(f"{result.run:32}{result.value:14.4g}{result.top1:8.1f}" for result in results)])
