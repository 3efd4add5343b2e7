"""`labelflow compare`: the same training under several methods and seeds."""

import hashlib
import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import OmitArgPrefixes, Positional

from labelflow.arguments import parse_arguments
from labelflow.engine.run import atomic_write
from labelflow.process import is_launched, is_main_process
from labelflow.recipes import find
from labelflow.recipes.methods import METHODS, Method, find_method
from labelflow.tasks.recipe import Recipe

if TYPE_CHECKING:
    from labelflow.compare import Cell, Row
    from labelflow.compare.cells import Result


@dataclass(frozen=True)
class Compare:
    """Train the same model on the same data under several methods and seeds."""

    methods: Positional[tuple[str, ...]]
    """Methods to compare, the baseline first: names, or NAME=MIXER/TARGET."""
    recipe: Annotated[Recipe, OmitArgPrefixes]
    out: Path
    """The folder of the comparison."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Each method is trained once with each seed, instead of --seed."""
    jobs: int = 1
    """Cells to train in parallel, each with its share of the cores."""
    speed_rounds: int = 5
    """Updates of each method, in turn, to measure images/s; 0: do not measure."""
    any_code: bool = False
    """Reuse cells trained by another version of the code."""
    table_only: bool = False
    """Do not train: show the table of finished cells."""


def compare(name: str, args: Sequence[str]) -> None:
    """The same training under several methods and seeds, in one table."""
    entry = find(name)
    default = Compare(("cutmix", "tl_align"), entry.recipe, Path("compare") / name)
    about = (
        f"The recipe {name} under several methods and seeds: a table of accuracies with their spread, of speed and "
        f"memory, a plot, compare.html. Finished cells are reused, interrupted ones resumed. Methods: "
        f"{', '.join(METHODS)}. Example: labelflow compare {name} cutmix tl_align --seeds 0 1 2"
    )
    options = parse_arguments(Compare, args, f"labelflow compare {name}", default=default, description=about)
    methods = _methods(options)
    from labelflow.engine import Interrupted

    try:
        run_compare(name, options, methods)
    except (Interrupted, KeyboardInterrupt):
        print("interrupted, checkpoints saved. Run the same command to continue", file=sys.stderr)
        raise SystemExit(130) from None


def _methods(options: Compare) -> list[Method]:
    """The methods, after checking the options."""
    if options.jobs < 1:
        raise ValueError(f"--jobs must be at least 1, not {options.jobs}")
    if len(set(options.seeds)) != len(options.seeds) or not options.seeds:
        raise ValueError(f"--seeds must be at least one integer, without repetitions, not {options.seeds}")
    methods = [find_method(text) for text in options.methods]
    _check(methods, options.recipe)
    return methods


def run_compare(name: str, options: Compare, methods: list[Method]) -> None:
    from labelflow.compare import make_cells, rows
    from labelflow.tasks import Classification

    cells = make_cells(options.recipe, methods, options.seeds)
    results = {cell: result for cell in cells if (result := _finished(cell, options))}
    missing = [cell for cell in cells if cell not in results]
    speeds: dict[str, float] = {}
    failed: dict[Cell, Exception] = {}
    # Fail early: every method is built now, and takes a step when its speed is measured.
    if not options.table_only:
        for cell in {cell.method: cell for cell in missing}.values():
            Classification(cell.recipe, tell=lambda text: None)
    if options.speed_rounds and not is_launched():  # launched processes would have to wait for each other
        speeds = _speeds(options, cells)
    if missing and not options.table_only:
        failed = _train(missing, results, options)
    if not is_main_process():
        return
    if not results:
        why = "".join(f"; {cell.method}, seed {cell.seed}: {error}" for cell, error in failed.items())
        raise ValueError(f"{options.out} has no finished cell of this comparison{why}")
    ordered = [results[cell] for cell in cells if cell in results]
    _show(name, options, rows(ordered, speeds, [method.name for method in methods]), ordered, len(cells))
    if failed:
        reasons = "; ".join(f"{cell.method}, seed {cell.seed}: {error}" for cell, error in failed.items())
        raise ValueError(f"{len(failed)} cells failed and are missing from the table: {reasons}")


def _train(missing: "list[Cell]", results: "dict[Cell, Result]", options: Compare) -> "dict[Cell, Exception]":
    """Adds to the results, and returns what failed."""
    from labelflow.compare import run_cells
    from labelflow.compare.cells import headline
    from labelflow.engine.progress import Counted

    failed: dict[Cell, Exception] = {}
    alone = options.jobs == 1  # the cell then has its own progress bar
    with Counted("comparing", "cells", len(missing), quiet=alone) as progress:
        tell = print if alone and is_main_process() else progress.say

        def done(cell: "Cell", result: "Result | Exception | None") -> None:
            status = "being trained by another process" if result is None else f"failed: {result}"
            if isinstance(result, Exception):
                failed[cell] = result
            elif result is not None:
                results[cell] = result
                status = f"{result['metrics'][headline(result['metrics'])]:.1f} % top-1"
            tell(f"{cell.method}, seed {cell.seed}: {status}")
            progress.advance(1)

        run_cells(missing, options.out, options.jobs, done)
    return failed


def _check(methods: list[Method], recipe: Recipe) -> None:
    """Check the names, and that methods that need labels have them."""
    names = [method.name for method in methods]
    if len(names) < 2:
        raise ValueError(f"name at least two methods, the baseline first; there are {', '.join(METHODS)}")
    if len(set(names)) != len(names):
        raise ValueError(f"methods must not repeat: {' '.join(names)}")
    dense = [method.name for method in methods if method.dense]
    if dense and not recipe.data.labels:
        raise ValueError(f"{', '.join(dense)} need dense labels: make them with labelflow annotate, and pass --labels")


def _finished(cell: "Cell", options: Compare) -> "Result | None":
    exact = cell.finished(options.out)
    return exact or (cell.finished_by_other_code(options.out) if options.any_code else None)


def _pace(recipe: Recipe) -> list[object]:
    """The settings that decide the time of a step."""
    training = recipe.training
    how = [training.micro_batch, training.optimizer, training.precision, training.compile, training.checkpointing]
    return [recipe.model, recipe.mixer, recipe.target, recipe.data.image_size, *how]


def _speeds(options: Compare, cells: "list[Cell]") -> dict[str, float]:
    """images/s relative to the first method; measured once for the same settings."""
    import torch
    from filelock import FileLock

    from labelflow.compare import measure_speeds
    from labelflow.engine.progress import Counted

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
            with Counted("measuring speed", "rounds", options.speed_rounds + 1) as progress:
                try:
                    speeds = measure_speeds(recipes, options.speed_rounds, progress.advance)
                except torch.OutOfMemoryError:
                    progress.say("not enough memory for all methods at once: speeds are not measured")
                    return {}
            with atomic_write(path) as draft:
                draft.write_text(json.dumps({name: asdict(one) for name, one in speeds.items()}, indent=1) + "\n")
    return {name: speed["ratio"] for name, speed in json.loads(path.read_text()).items()}


def _show(name: str, options: Compare, table: "list[Row]", results: "list[Result]", cells: int) -> None:
    from filelock import FileLock
    from rich.table import Column, Table

    from labelflow.compare import markdown, write_page
    from labelflow.compare.page import HEAD, cells_of, notes, write_svg
    from labelflow.engine.progress import duration, table_console

    printed = Table(*(Column(head, no_wrap=place == 0) for place, head in enumerate(HEAD)), box=None)
    for row in table:
        printed.add_row(*cells_of(row))
    table_console().print(printed)
    print("", *notes(table), sep="\n")
    training = options.recipe.training
    facts = [
        f"{options.recipe.model} at {options.recipe.data.image_size} px, {training.epochs} epochs, batch "
        f"{training.batch}, learning rate {training.scaled_lr:g}, seeds {', '.join(map(str, options.seeds))}.",
        f"{duration(sum(row.seconds for row in table))} of training.",
    ]
    versions = {result["code"] for result in results}
    if len(versions) > 1:
        facts.append(f"The cells were trained by {len(versions)} versions of the code.")
    if len(results) < cells:
        facts.append(f"{cells - len(results)} cells are not finished.")
        print(f"\n{cells - len(results)} cells are not finished; run the same command to continue.", file=sys.stderr)
    options.out.mkdir(parents=True, exist_ok=True)
    with FileLock(options.out / ".lock"):
        write_page(options.out / "compare.html", f"{name}: {len(table)} methods", facts, table)
        write_svg(options.out / "compare.svg", table)
        with atomic_write(options.out / "compare.md") as draft:
            draft.write_text(markdown(table))
    print(f"\n  look at it     {options.out / 'compare.html'}")
