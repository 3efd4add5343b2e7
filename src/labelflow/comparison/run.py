"""From a recipe, methods and seeds to the results of `labelflow compare`, on disk and as an object."""

import hashlib
import json
import platform
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from labelflow.comparison.cells import Cell, Result, make_cells, told
from labelflow.comparison.page import markdown, write_page, write_svg
from labelflow.comparison.runner import run_cells
from labelflow.comparison.settings import Compare
from labelflow.comparison.speed import measure_speeds
from labelflow.comparison.statistics import Row, rows
from labelflow.data.outputs import check_output
from labelflow.engine.lock import one_writer
from labelflow.engine.progress import Counted, Shown, duration
from labelflow.files import atomic_write, read_sealed, write_sealed
from labelflow.html import Page
from labelflow.process import is_launched, is_main_process
from labelflow.recipes.methods import find_method
from labelflow.tasks import Classification, Recipe


@dataclass(frozen=True, repr=False)
class Comparison(Page):
    """The same training under several methods and seeds."""

    folder: Path
    rows: list[Row]  # a method each, the baseline first
    cells: list[Result]  # those that are finished
    missing: int  # cells that are not
    failed: dict[str, Exception] = field(default_factory=dict)  # of those, why

    @property
    def page(self) -> Path:
        return self.folder / "compare.html"

    @property
    def records(self) -> list[dict[str, Any]]:
        """A row for each method."""
        return [
            {
                "method": row.method,
                row.metric: row.mean,
                "balanced": row.balanced,
                "worst_fifth": row.worst,
                "spread": row.spread,
                "seeds": len(row.accuracies),
                "difference": row.against_first and row.against_first.mean,
                "low": row.against_first and row.against_first.low,
                "high": row.against_first and row.against_first.high,
                "verdict": row.against_first and row.against_first.verdict,
                "speed": row.speed,
            }
            for row in self.rows
        ]

    @property
    def failures(self) -> str:
        """In one line; '' if there are none."""
        reasons = "; ".join(f"{cell}: {error}" for cell, error in self.failed.items())
        return f"{len(self.failed)} cells failed and are missing from the table: {reasons}" if reasons else ""


def run_comparison(name: str, options: Compare, quiet: bool = False) -> Comparison:
    """Train what is missing, and write the table, the plot and the page."""
    check_output(options.recipe.data.source, options.out)
    alone = not (options.join or options.table_only)
    with one_writer(options.out, "help it with --join") if alone else nullcontext("") as warning:
        if warning and is_main_process() and not quiet:
            print(warning)
        return _run_comparison(name, options, quiet)


def _run_comparison(name: str, options: Compare, quiet: bool) -> Comparison:
    methods = [find_method(text) for text in options.methods]
    cells = make_cells(options.recipe, methods, options.seeds, Shown(quiet or not is_main_process()).say)
    results = {cell: result for cell in cells if (result := _finished(cell, options))}
    missing = [cell for cell in cells if cell not in results]
    speeds: dict[str, float] = {}
    failed: dict[str, Exception] = {}
    # Fail early: every method is built now, and takes a step when its speed is measured.
    if not options.table_only:
        for cell in {cell.method: cell for cell in missing}.values():
            Classification(cell.recipe, tell=lambda text: None)
    if options.speed_rounds and not is_launched():  # launched processes would have to wait for each other
        speeds = _speeds(options, cells, quiet)
    if missing and not options.table_only:
        failed = _train(missing, results, options, quiet)
    if not results and is_main_process():
        why = "".join(f"; {cell}: {error}" for cell, error in failed.items())
        raise ValueError(f"{options.out} has no finished cell of this comparison{why}")
    ordered = [results[cell] for cell in cells if cell in results]
    table = rows(ordered, speeds, [method.name for method in methods])
    made = Comparison(options.out, table, ordered, len(cells) - len(ordered), failed)
    if is_main_process():
        _write(name, options, made)
    return made


def _train(missing: list[Cell], results: dict[Cell, Result], options: Compare, quiet: bool) -> dict[str, Exception]:
    """Adds to the results, and returns what failed."""
    failed: dict[str, Exception] = {}
    alone = options.jobs == 1  # the cell then has its own progress bar
    with Counted("comparing", "cells", len(missing), quiet=alone or quiet) as progress:
        tell: Callable[[str], None] = print if alone and is_main_process() and not quiet else progress.say

        def done(cell: Cell, result: Result | Exception | None) -> None:
            status = "being trained by another process" if result is None else f"failed: {result}"
            name = f"{cell.method}, seed {cell.seed}"
            if isinstance(result, Exception):
                failed[name] = result
            elif result is not None:
                results[cell] = result
                status = told(result)
            tell(f"{name}: {status}")
            progress.advance(1)

        run_cells(missing, options.out, options.jobs, done, quiet=quiet)
    return failed


def _finished(cell: Cell, options: Compare) -> Result | None:
    exact = cell.finished(options.out)
    return exact or (cell.finished_by_other_code(options.out) if options.any_code else None)


def _pace(recipe: Recipe) -> list[object]:
    """The settings that decide the time of a step."""
    training = recipe.training
    how = [training.micro_batch, training.optimizer, training.precision, training.compile, training.checkpointing]
    what = [recipe.model, recipe.mixer, recipe.target, recipe.loss, recipe.teacher, recipe.teacher_size]
    return [*what, recipe.data.image_size, *training.freeze, *how]


def _speeds(options: Compare, cells: list[Cell], quiet: bool) -> dict[str, float]:
    """images/s relative to the first method; measured once for the same settings."""
    recipes = {cell.method: cell.recipe for cell in cells if cell.seed == options.seeds[0]}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    settings = [device, [[name, _pace(recipe)] for name, recipe in recipes.items()]]
    key = hashlib.blake2b(json.dumps(settings).encode(), digest_size=6).hexdigest()
    path = options.out / "speeds" / f"{key}.json"
    if options.table_only and not path.exists():
        return {}
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{key}.lock")):  # measured by one of several instances
        if not path.exists():
            with Counted("measuring speed", "rounds", options.speed_rounds + 1, quiet) as progress:
                try:
                    speeds = measure_speeds(recipes, options.speed_rounds, progress.advance)
                except torch.OutOfMemoryError:
                    progress.say("not enough memory for all methods at once: speeds are not measured")
                    return {}
            write_sealed(path, {name: asdict(one) for name, one in speeds.items()})
    speeds_read = read_sealed(path, "remove it to measure again")
    return {name: speeds_read[name]["ratio"] for name in recipes}


def _write(name: str, options: Compare, made: Comparison) -> None:
    made.folder.mkdir(parents=True, exist_ok=True)
    with FileLock(made.folder / ".table.lock"):  # several processes may work on it
        write_page(made.page, f"{name}: {len(made.rows)} methods", _facts(options, made), made.rows)
        write_svg(made.folder / "compare.svg", made.rows)
        with atomic_write(made.folder / "compare.md") as draft:
            draft.write_text(markdown(made.rows), encoding="utf-8")


def _facts(options: Compare, made: Comparison) -> list[str]:
    """What was run, a line each."""
    training = options.recipe.training
    facts = [
        f"{options.recipe.model} at {options.recipe.data.image_size} px, {training.epochs} epochs, batch "
        f"{training.batch}, learning rate {training.scaled_lr:g}, seeds {', '.join(map(str, options.seeds))}.",
        f"{duration(sum(row.seconds for row in made.rows))} of training.",
    ]
    versions = {result["code"] for result in made.cells}
    if len(versions) > 1:
        facts.append(f"The cells were trained by {len(versions)} versions of the code.")
    if made.missing:
        facts.append(f"{made.missing} cells are not finished.")
    return facts
