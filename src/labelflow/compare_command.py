"""`labelflow compare`: the same training under several methods and seeds."""

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.table import Column, Table
from tyro.conf import OmitArgPrefixes, Positional

from labelflow.compare import Cell, Row, make_cells, markdown, measure_speeds, rows, run_cells, write_page
from labelflow.compare.cells import Result, is_main_process
from labelflow.compare.page import HEAD, NOTE, cells_of, write_svg
from labelflow.engine.progress import Counted
from labelflow.engine.run import whole_file
from labelflow.recipes.methods import METHODS, Method, find_method
from labelflow.tasks import Classification, Recipe


@dataclass(frozen=True)
class Compare:
    """Train the same model on the same data under several methods and seeds."""

    methods: Positional[tuple[str, ...]]
    """What is compared, the baseline first: names, or one's own as NAME=MIXER/TARGET."""
    recipe: Annotated[Recipe, OmitArgPrefixes]
    out: Path
    """The folder of the comparison."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Each method is trained once with each; they take the place of --seed."""
    jobs: int = 1
    """Cells that are trained at once, each with its share of the cores."""
    speed_rounds: int = 5
    """Updates of each method, in turn, for the column images/s; 0: no such column."""
    any_code: bool = False
    """Reuse cells that another version of the code has finished."""
    table_only: bool = False
    """Train nothing: the table of what is finished."""


def run_compare(name: str, options: Compare) -> None:
    if options.jobs < 1:
        raise ValueError(f"--jobs must be at least 1, not {options.jobs}")
    if len(set(options.seeds)) != len(options.seeds) or not options.seeds:
        raise ValueError(f"--seeds must be different whole numbers, at least one, not {options.seeds}")
    methods = [find_method(text) for text in options.methods]
    _check(methods, options.recipe)
    cells = make_cells(options.recipe, methods, options.seeds)
    results = {cell: result for cell in cells if (result := _finished(cell, options.out, options.any_code))}
    missing = [cell for cell in cells if cell not in results]
    if not options.table_only and missing:
        for cell in {cell.method: cell for cell in missing}.values():
            Classification(cell.recipe, tell=lambda text: None)  # what would stop it at night stops it now
        quiet = options.jobs == 1 or not is_main_process()
        with Counted("comparing", "cells", len(cells), quiet) as progress:
            progress.skip(len(results))

            def done(cell: Cell, result: Result | None) -> None:
                if result is None:
                    progress.say(f"{cell.method}, seed {cell.seed}: another program works at it")
                else:
                    results[cell] = result
                    progress.say(f"{cell.method}, seed {cell.seed}: {result['metrics']['top1']:.1f} % top-1")
                    progress.advance(1)

            run_cells(missing, options.out, options.jobs, done)
    if not is_main_process():
        return
    if not results:
        raise ValueError(f"no cell of this comparison is finished in {options.out}")
    speeds = _speeds(options, methods)
    ordered = [results[cell] for method in methods for cell in cells if cell.method == method.name and cell in results]
    _show(name, options, rows(ordered, speeds), len(cells) - len(results))


def _check(methods: list[Method], recipe: Recipe) -> None:
    """The names, and the labels that some need."""
    names = [method.name for method in methods]
    if len(names) < 2:
        raise ValueError(f"name at least two methods, the baseline first; there are {', '.join(METHODS)}")
    if len(set(names)) != len(names):
        raise ValueError(f"each method may come once, not {' '.join(names)}")
    dense = [method.name for method in methods if method.dense]
    if dense and not recipe.data.labels:
        raise ValueError(
            f"{', '.join(dense)} need dense labels: labelflow annotate makes them, and --labels names them"
        )


def _finished(cell: Cell, out: Path, any_code: bool) -> Result | None:
    exact = cell.finished(out)
    if exact is not None or not any_code:
        return exact
    for path in sorted((out / "cells").glob(f"{cell.method}-{cell.seed}-*.json")):
        before = json.loads(path.read_text())
        if Cell(cell.method, cell.recipe, cell.data, before["code"]).key == before["key"]:
            return before
    return None


def _speeds(options: Compare, methods: list[Method]) -> dict[str, float]:
    """Measured once for the same methods, and kept."""
    if not options.speed_rounds or "WORLD_SIZE" in os.environ:  # launched processes would wait for one another
        return {}
    path = options.out / "speed.json"
    asked = {method.name: [method.mixer, method.target] for method in methods}
    if path.exists():
        kept = json.loads(path.read_text())
        if kept["methods"] == asked or options.table_only:
            return {name: value["ratio"] for name, value in kept["speeds"].items()}
    if options.table_only:
        return {}
    with Counted("measuring speed", "rounds", options.speed_rounds + 1) as progress:
        recipes = {method.name: method.of(options.recipe) for method in methods}
        speeds = measure_speeds(recipes, options.speed_rounds, progress.advance)
    options.out.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as draft:
        kept = {"methods": asked, "speeds": {name: asdict(speed) for name, speed in speeds.items()}}
        draft.write_text(json.dumps(kept, indent=1) + "\n")
    return {name: speed.ratio for name, speed in speeds.items()}


def _show(name: str, options: Compare, table: list[Row], missing: int) -> None:
    printed = Table(*(Column(head, no_wrap=place == 0) for place, head in enumerate(HEAD)), box=None)
    for row in table:
        printed.add_row(*cells_of(row))
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(printed)
    print(f"\n{NOTE}")
    training = options.recipe.training
    facts = [
        f"{options.recipe.model} at {options.recipe.data.image_size} px, {training.epochs} epochs, batch "
        f"{training.batch}, learning rate {training.scaled_lr:g}, seeds {', '.join(map(str, options.seeds))}.",
        f"{sum(row.seconds for row in table) / 3600:.1f} hours of training.",
    ]
    if missing:
        facts.append(f"{missing} cells are not finished.")
        print(f"\n{missing} cells are not finished; the same command goes on.", file=sys.stderr)
    options.out.mkdir(parents=True, exist_ok=True)
    write_page(options.out / "compare.html", f"{name}: {len(table)} methods", facts, table)
    write_svg(options.out / "compare.svg", table)
    with whole_file(options.out / "compare.md") as draft:
        draft.write_text(markdown(table))
    print(f"\n  look at it     {options.out / 'compare.html'}")
