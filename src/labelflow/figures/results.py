"""The results of runs, for figures that compare them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

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
        top1 = last.get("ema_top1", last["top1"])
        name = Path(folder).resolve().name
        results.append(Result(name, recipe.model, top1, value(run, recipe)))
    return results


def summary(results: Sequence[Result], head: str) -> str:
    lines = [f"{'':32}{head:>14}{'top-1':>8}"]
    return "\n".join([*lines, *(f"{result.run:32}{result.value:14.4g}{result.top1:8.1f}" for result in results)])
