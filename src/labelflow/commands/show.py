"""`labelflow show`: a recipe in full."""

import json
from dataclasses import asdict

from tyro.conf import Positional

from labelflow.recipes import find_any
from labelflow.settings import differences


def show(recipe: Positional[str]) -> None:
    """A recipe in full, and what differs from its parent.

    Args:
        recipe: Its name; labelflow list shows all.
    """
    entry = find_any(recipe)
    facts = {"source": entry.source, "paper": entry.paper, "reported": entry.reported, "command": entry.command}
    print(f"{entry.name}: {entry.about}")
    for key, value in facts.items():
        if value:
            print(f"  {key}: {value}")
    if entry.parent:
        print(f"\ndiffers from {entry.parent}:")
        for name, before, now in differences(find_any(entry.parent).recipe, entry.recipe):
            print(f"  {name}: {before!r} -> {now!r}")
    print(f"\n{json.dumps(asdict(entry.recipe), indent=2)}")
