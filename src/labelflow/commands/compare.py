"""`labelflow compare`: the same training under several methods and seeds."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from labelflow.arguments import parse_arguments
from labelflow.comparison.settings import Compare
from labelflow.process import is_main_process
from labelflow.recipes import find
from labelflow.recipes.methods import METHODS

if TYPE_CHECKING:
    from labelflow.comparison.run import Comparison


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
    from labelflow.comparison.run import run_comparison
    from labelflow.engine import Interrupted

    try:
        made = run_comparison(name, options)
    except (Interrupted, KeyboardInterrupt):
        print("interrupted, checkpoints saved. Run the same command to continue", file=sys.stderr)
        raise SystemExit(130) from None
    if is_main_process():
        _print(made)
        if made.failed:
            raise ValueError(made.failures)


def _print(made: "Comparison") -> None:
    from rich.table import Column, Table

    from labelflow.comparison.page import columns_of, notes
    from labelflow.engine.progress import table_console

    heads, lines = columns_of(made.rows)
    printed = Table(*(Column(head, no_wrap=place == 0) for place, head in enumerate(heads)), box=None)
    for line in lines:
        printed.add_row(*line)
    table_console().print(printed)
    print("", *notes(made.rows), sep="\n")
    if made.missing:
        print(f"\n{made.missing} cells are not finished; run the same command to continue.", file=sys.stderr)
    print(f"\n  look at it     {made.page}")
