"""`labelflow list`: every recipe."""

from tyro.conf import Positional

from labelflow.recipes import ALL


def list_recipes(pattern: Positional[str] = "") -> None:
    """Every recipe, with the number that its paper reports.

    Args:
        pattern: Only recipes whose names hold this.
    """
    from rich.table import Column, Table

    from labelflow.engine.progress import table_console

    table = Table(Column("recipe", no_wrap=True), "what it is", "paper", "reported", box=None)
    for entry in ALL.values():
        if pattern in entry.name:
            number = "" if entry.aim is None else f"{entry.aim:.1f} {entry.kind.unit}"
            table.add_row(entry.name, entry.about, entry.paper, number)
    if not table.row_count:
        raise ValueError(f"no recipe's name holds {pattern!r}; labelflow list shows all")
    table_console().print(table)
