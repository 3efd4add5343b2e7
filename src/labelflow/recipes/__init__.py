"""Named recipes: functions that return a Recipe, derived from one another. One file a family, one line here."""

from labelflow.recipes import imagenet, small, transfer
from labelflow.recipes.base import Entry
from labelflow.spec import known

RECIPES: dict[str, Entry] = {entry.name: entry for entry in (*small.ENTRIES, *imagenet.ENTRIES, *transfer.ENTRIES)}


def find(name: str) -> Entry:
    return RECIPES[known(name, RECIPES, "recipe")]


__all__ = ["RECIPES", "Entry", "find"]
