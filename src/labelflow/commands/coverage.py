"""`labelflow coverage`: which of timm's models labels can follow."""

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tyro.conf import Positional

if TYPE_CHECKING:
    from labelflow.analysis.coverage import Tried


def coverage(patterns: Positional[tuple[str, ...]] = (), write: Path | None = None) -> None:
    """Which of timm's models labels can follow: attaches all, and runs one of each kind.

    Args:
        patterns: Model names, with * for any part; none: all of timm's models, which takes 40 minutes on one core.
        write: A Markdown file for the table.
    """
    import timm
    from rich.table import Table

    from labelflow.analysis import coverage as models
    from labelflow.engine.progress import Counted, literal_console

    chosen = [name for pattern in patterns for name in timm.list_models(pattern)]
    names = list(dict.fromkeys(chosen)) if patterns else models.names_of_timm()
    if not names:
        raise ValueError(f"timm has no model {' or '.join(patterns)}; put a * around a part of its name")
    found, tried = [], {}
    with Counted("attaching", "models", len(names)) as progress:
        for name in names:
            found.append(models.look(name))
            progress.advance(1)
    smallest = models.smallest_of_each_kind(found)
    with Counted("running", "models", len(smallest)) as progress:
        for model in smallest:
            tried[model.name] = _run(model.name)
            progress.advance(1)
    table = Table("timm.models", "names", "aligned", "kinds run", "the others", box=None)
    for row in models.table(found, tried):
        table.add_row(*map(str, row))
    literal_console().print(table)
    failed = [result.name for result in tried.values() if not result.passed]
    if failed:
        raise ValueError(f"labels do not flow as they should, or change the logits, in {', '.join(failed)}")
    if write:
        write.write_text(models.page(found, tried), encoding="utf-8")
        print(f"wrote {write}")


def _run(name: str) -> "Tried":
    """A model that stops with an error has not passed; the others are still tried."""
    from labelflow.analysis import coverage as models

    try:
        return models.run(name)
    except Exception as error:
        print(f"{name}: {error}", file=sys.stderr)
        return models.Tried(name, math.inf, same_logits=False, locality=None)
