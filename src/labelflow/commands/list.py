"""`labelflow list`: every recipe, and the rows of the papers that have none."""

from tyro.conf import Positional

from labelflow.recipes import ALL
from labelflow.recipes.papers import papers


def list_recipes(pattern: Positional[str] = "", quoted: bool = False) -> None:
    """Every recipe, with the numbers that its paper reports.

    Of segmenters, mAcc and aAcc are the accuracy averaged over classes and that of all pixels; MS: at several scales.

    Args:
        pattern: Only recipes whose names hold this.
        quoted: Instead the baselines that the papers quote from elsewhere, for which there is no recipe.
    """
    from rich.table import Column, Table

    from labelflow.engine.progress import table_console

    if quoted:
        table = Table("paper", Column("row", no_wrap=True), "reported", "quoted from", box=None)
        for cells in _quoted():
            if pattern.lower() in cells[1].lower():
                table.add_row(*cells)
    else:
        table = Table(Column("recipe", no_wrap=True), "what it is", "paper", "reported", box=None)
        for entry in ALL.values():
            if pattern in entry.name:
                table.add_row(entry.name, entry.about, entry.paper, entry.reported)
    if not table.row_count:
        raise ValueError(f"no {'row' if quoted else 'recipe'}'s name holds {pattern!r}; labelflow list shows all")
    table_console().print(table)
    if not pattern and not quoted:
        print(f"\n{len(_quoted())} baselines that the papers quote have no recipe: labelflow list --quoted")


def _quoted() -> list[tuple[str, str, str, str]]:
    return [
        (f"{paper}, {item.name}", row.label, item.reported(row), row.quoted)
        for paper, items in papers().items()
        for item in items
        for row in item.rows
        if row.state == "quoted"
    ]
