"""Named recipes: functions that return a Recipe, derived from one another. One file a family, one line here."""

from collections.abc import Iterable
from dataclasses import replace

from labelflow.recipes import imagenet, rivals, small, token_labeling, token_labeling_others, transfer
from labelflow.recipes.base import Entry
from labelflow.spec import known


def _of(paper: str, *families: Iterable[Entry]) -> list[Entry]:
    """Rows of a paper's tables, which say so."""
    entries = [entry for family in families for entry in family]
    return [replace(entry, paper=f"{paper}, {entry.paper}") if entry.paper else entry for entry in entries]


RECIPES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        *small.ENTRIES,
        *_of("TL-Align", imagenet.ENTRIES, rivals.ENTRIES, transfer.ENTRIES),
        *rivals.LATER,
        *_of("Token Labeling", token_labeling.ENTRIES, token_labeling_others.ENTRIES),
    )
}


def find(name: str) -> Entry:
    return RECIPES[known(name, RECIPES, "recipe")]


__all__ = ["RECIPES", "Entry", "find"]
