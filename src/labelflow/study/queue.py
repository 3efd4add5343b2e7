"""The queue of a study: its cells in the order of the plan, as many at once as there are jobs.

FOLDER/plan.toml                     the plan
FOLDER/cells/EXPERIMENT.METHOD-SEED-KEY.json   a finished cell
FOLDER/runs/…                        its run
"""

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timm.layers import use_fused_attn

from labelflow.comparison.cells import Cell, Result, code_version, read_result, run_cell
from labelflow.comparison.runner import run_cells
from labelflow.spec import known
from labelflow.study.measures import MEASURES
from labelflow.study.plan import Plan


def read_cells(plan: Plan) -> list[Result]:
    """All finished cells; one that is damaged or does not belong to the plan is an error."""
    results: dict[tuple[str, int], tuple[Path, Result]] = {}
    for path in sorted((plan.folder / "cells").glob("*.json")):
        result = read_result(path)
        name, _, method = result["method"].partition(".")
        experiment = plan.experiments.get(name)
        if experiment is None or method not in experiment.found:
            raise ValueError(f"{path} is a cell of {result['method']}, which is not in {plan.folder / 'plan.toml'}")
        if result.get("plan") != experiment.digest(method):
            raise ValueError(
                f"{path} was run with another plan of {result['method']}; restore that plan, or remove the cell"
            )
        if result["seed"] not in experiment.seeds:
            raise ValueError(f"{path} has seed {result['seed']}, which the plan of {name} does not; remove it")
        other, _ = results.setdefault((result["method"], result["seed"]), (path, result))
        if other != path:
            raise ValueError(f"{other} and {path} are the same cell; remove the one that was run later")
    return [result for _, result in results.values()]


def open_cells(
    plan: Plan, only: Sequence[str] = (), unready: Callable[[str, ValueError], None] | None = None
) -> list[Cell]:
    """The cells still to be run, in the order of the plan. `unready` is told of experiments whose data or labels cannot
    be opened yet, and why; they are left out. Without it, this is an error."""
    for name in only:
        known(name, plan.experiments, "experiment")
    done = {(result["method"], result["seed"]) for result in read_cells(plan)}
    chosen = [one for name, one in plan.experiments.items() if not only or name in only]
    finished = {one.name for one in chosen if all((f"{one.name}.{m}", s) in done for m in one.found for s in one.seeds)}
    cells: list[Cell] = []
    for experiment in chosen:
        try:
            cells += experiment.cells() if experiment.name not in finished else []
        except ValueError as error:
            if unready is None:
                raise
            unready(experiment.name, error)
    return [cell for cell in cells if (cell.method, cell.seed) not in done]


def run(plan: Plan, cells: list[Cell], jobs: int, done: Callable[[Cell, Result | Exception | None], None]) -> None:
    run_cells(cells, plan.folder, jobs, done, finish=partial(_finish, plan))


def repeat(plan: Plan, method: str, seed: int, out: Path) -> tuple[Result, Result]:
    """A finished cell as it is in the study, and trained again in another folder. method: such as world.cutmix"""
    if out.resolve() == plan.folder.resolve():
        raise ValueError(f"{out} is the study itself: a cell is repeated in another folder")
    results = {(result["method"], result["seed"]): result for result in read_cells(plan)}
    known(method, sorted({name for name, _ in results}), "finished cell")
    if (method, seed) not in results:
        seeds = ", ".join(str(own) for name, own in sorted(results) if name == method)
        raise ValueError(f"{method} has not been run with seed {seed}; finished are {seeds}")
    cells = plan.experiments[method.partition(".")[0]].cells()
    (cell,) = (cell for cell in cells if (cell.method, cell.seed) == (method, seed))
    return results[method, seed], run_cell(cell, out, finish=partial(_finish, plan))


def _finish(plan: Plan, cell: Cell, run: Path, result: Result) -> Result:
    """With measures of the trained model, what it cost, and which plan it belongs to."""
    name, _, method = cell.method.partition(".")
    experiment = plan.experiments[name]
    metrics = dict(result["metrics"])
    for measure in experiment.measures:
        metrics |= MEASURES[measure].compute(run)
    cpu = round(time.process_time(), 1)  # of this process; a resumed run counts its last part only
    own = {"plan": experiment.digest(method), "metrics": metrics, "cpu_seconds": cpu, "arithmetic": arithmetic()}
    return {**result, **own, "package": code_version(lambda file: True)}  # measures are not part of `code`


def arithmetic() -> dict[str, Any]:
    """What a number's last digits depend on beside the versions of packages, and after thousands of updates all of
    its digits."""
    return {
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "fused_attention": bool(use_fused_attn()),
        "preloaded": [Path(name).name for name in os.environ.get("LD_PRELOAD", "").split(":") if name],
    }
