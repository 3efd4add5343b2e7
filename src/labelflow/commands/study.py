"""`labelflow study run | report | repeat`: pre-registered experiments and their verdicts."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from labelflow.spec import known

if TYPE_CHECKING:
    from labelflow.comparison.cells import Cell, Result


def run_study(folder: Positional[Path], only: tuple[str, ...] = (), jobs: int = 1, dry_run: bool = False) -> None:
    """Run the cells of a plan that are missing, in its order.

    Args:
        folder: The folder of plan.toml.
        only: Only these experiments.
        jobs: Cells to train in parallel, each with its share of the cores.
        dry_run: Only list the cells.
    """
    from labelflow.comparison.cells import told
    from labelflow.engine import Interrupted
    from labelflow.engine.progress import Counted
    from labelflow.study.plan import read_plan
    from labelflow.study.queue import open_cells, run

    if jobs < 1:
        raise ValueError(f"--jobs must be at least 1, not {jobs}")
    plan = read_plan(folder)
    failed: list[str] = []

    def unready(experiment: str, error: ValueError) -> None:
        failed.append(f"{experiment}: {error}")
        print(f"labelflow: {experiment} is left out: {error}", file=sys.stderr)

    cells = open_cells(plan, only, unready)
    if dry_run:
        for cell in cells:
            print(f"{cell.method}, seed {cell.seed}")
        print(f"{len(cells)} cells are missing")
        return
    try:
        with Counted("study", "cells", len(cells), quiet=jobs == 1) as progress:

            def done(cell: "Cell", result: "Result | Exception | None") -> None:
                if result is None or isinstance(result, Exception):
                    why = result or "another process is training it"
                    failed.append(f"{cell.method}, seed {cell.seed}: {why}")
                else:
                    progress.say(f"{cell.method}, seed {cell.seed}: {told(result)}")
                progress.advance(1)

            run(plan, cells, jobs, done)
    except (Interrupted, KeyboardInterrupt):
        print("interrupted, checkpoints saved. Run the same command to continue", file=sys.stderr)
        raise SystemExit(130) from None
    if failed:
        raise ValueError(f"not all cells have been run: {'; '.join(failed)}")


def report_study(
    folder: Positional[Path],
    claims: Annotated[tuple[str, ...], arg(metavar="NAME …")] = (),
    page: Path | None = None,
) -> None:
    """What the finished cells of a study decide.

    Args:
        folder: The folder of plan.toml.
        claims: Only these.
        page: A Markdown file; everything below its line <!-- verdicts --> is replaced. The plot is saved next to it.
    """
    from labelflow.html import save
    from labelflow.study.page import forest, interval, markdown, source
    from labelflow.study.plan import read_plan
    from labelflow.study.queue import read_cells
    from labelflow.study.verdicts import decide

    plan = read_plan(folder)
    for name in claims:
        known(name, plan.claims, "claim")
    results = read_cells(plan)
    verdicts = decide(plan, results)
    for verdict in verdicts:
        if not claims or verdict.claim.name in claims:
            claim = verdict.claim
            print(f"{claim.name}: {verdict.word}\n  {claim.says}")
            print(f"  source: {source(claim)}\n  here: {interval(verdict) or 'nothing yet'}")
    if page:
        mark = "<!-- verdicts -->"
        text = page.read_text(encoding="utf-8") if page.exists() else f"# {plan.folder.name}\n\n{mark}\n"
        if mark not in text:
            raise ValueError(f"{page} has no line {mark}; the table is written below it")
        plot = page.with_name(f"{page.stem}.svg")
        parts = [text.partition(mark)[0] + mark, markdown(plan, verdicts, results)]
        if any(verdict.complete for verdict in verdicts):
            parts.insert(1, f"![Each claim with all of its seeds, its interval and verdict]({plot.name})")
            save(plot, forest(verdicts))
        save(page, "\n\n".join(parts))


def repeat_cell(folder: Positional[Path], cell: Positional[str], seed: int, out: Path = Path("runs/repeated")) -> None:
    """Train a finished cell again and compare the numbers. The exit code is 1 if they differ.

    Args:
        folder: The folder of plan.toml.
        cell: An experiment and a method, such as world.cutmix
        seed: The seed of the cell.
        out: Where to train it; interrupted, the same command continues. Finished there, it is only compared.
    """
    from labelflow.study.plan import read_plan
    from labelflow.study.queue import repeat

    before, now = repeat(read_plan(folder), cell, seed, out)
    for name, value in before["metrics"].items():
        again = now["metrics"].get(name)
        print(f"{name}: {value} before, {again} now{'' if again == value else ', which differs'}")
    if now["metrics"] == before["metrics"]:
        print(f"{cell}, seed {seed}: the same numbers")
        return
    changes = ", ".join(_changes(before, now)) or "nothing else is known to differ"
    print(f"{cell}, seed {seed}: other numbers ({changes})")
    raise SystemExit(1)


def _changes(before: "Result", now: "Result") -> list[str]:
    """What else differs: the code, versions, threads, and how the processor calculates."""
    found = {name: (before.get(name, "unknown"), now.get(name, "unknown")) for name in ("code", "package")}
    for part in ("environment", "arithmetic"):
        old, new = before.get(part, {}), now.get(part, {})
        found |= {name: (old.get(name, "unknown"), new.get(name, "unknown")) for name in {**old, **new}}
    return [f"{name}: {old} before, {new} now" for name, (old, new) in found.items() if old != new]
