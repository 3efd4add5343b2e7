"""Every equation, table and figure of both papers, row by row, and what delivers it: `papers.toml`, read.

The page docs/papers.md is made of it. Numbers come from the recipes; the file has those that no recipe reports.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Literal

from labelflow.recipes import ALL


@dataclass(frozen=True)
class Row:
    """A row of a table, a part of a figure, or an equation."""

    label: str = ""  # as the paper has it
    by: tuple[str, ...] = ()  # what delivers it: a recipe, a command, an option of `labelflow train` ("--epochs"), or a
    # place in the code ("flow:attend", in labelflow)
    quoted: str = ""  # where the paper quotes it from, if there is no recipe for it
    missing: str = ""  # why nothing delivers it
    note: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)  # by metric, beside or instead of the recipes'

    @property
    def state(self) -> Literal["delivered", "quoted", "not delivered"]:
        if self.by:
            return "delivered"
        return "quoted" if self.quoted else "not delivered"


@dataclass(frozen=True)
class Item:
    """An equation, a table or a figure; also a section of the text."""

    name: str  # in the paper, with its appendix
    about: str
    rows: tuple[Row, ...]
    metrics: tuple[str, ...]  # that it reports, of those that recipes have
    supplement: str = ""  # its name there
    columns: Mapping[str, str] = field(default_factory=dict)  # what measures, prints or draws them

    def numbers(self, row: Row) -> dict[str, list[float]]:
        """What it reports in a row, by metric; one number for each recipe, in their order."""
        recipes = [ALL[name].numbers for name in row.by if name in ALL]
        found = {metric: [numbers[metric] for numbers in recipes if metric in numbers] for metric in self.metrics}
        found |= {metric: [number] for metric, number in row.numbers.items()}
        return {metric: numbers for metric, numbers in found.items() if numbers}

    def reported(self, row: Row) -> str:
        """The same in a line.

        >>> table = next(item for item in papers()["TL-Align"] if item.name == "Table 7")
        >>> table.reported(table.rows[1])
        'top-1 79.8, 80.6'
        """
        numbers = {metric: ", ".join(map(str, values)) for metric, values in self.numbers(row).items()}
        return "; ".join(f"{metric} {values}" for metric, values in numbers.items())


def papers() -> dict[str, list[Item]]:
    """By the name that recipes call a paper by."""
    text = files(__package__).joinpath("papers.toml").read_text(encoding="utf-8")
    return {paper: [_item(**item) for item in items] for paper, items in tomllib.loads(text).items()}


def _item(rows: list[dict[str, Any]], metrics: Iterable[str] = ("top-1",), **rest: Any) -> Item:
    return Item(rows=tuple(_row(**row) for row in rows), metrics=tuple(metrics), **rest)


def _row(
    label: str = "", by: Iterable[str] = (), quoted: str = "", missing: str = "", note: str = "", **numbers: float
) -> Row:
    return Row(label, tuple(by), quoted, missing, note, numbers)
