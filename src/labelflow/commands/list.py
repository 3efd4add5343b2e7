"""`labelflow list`: every recipe."""

from tyro.conf import Positional

from labelflow.recipes import ALL


def list_recipes(pattern: Positional[str] = "") -> None:
    """Every recipe, with the numbers that its paper reports.

    Of segmenters, mAcc and aAcc are the accuracy averaged over classes and that of all pixels; MS: at several scales.

    Args:
        pattern: Only recipes whose names hold this.
    """
    from rich.table import Column, Table

    from labelflow.engine.progress import table_console

    table = Table(Column("recipe", no_wrap=True), "what it is", "paper", "reported", box=None)
    for entry in ALL.values():
        if pattern in entry.name:
            table.add_row(entry.name, entry.about, entry.paper, entry.reported)
    if not table.row_count:
        raise ValueError(f"no recipe's name holds {pattern!r}; labelflow list shows all")
    table_console().print(table)
