"""What all recipes can: to be changed, wherever a setting is."""

from dataclasses import fields, is_dataclass, replace
from typing import Any, Self


class Changeable:
    """A dataclass, some of whose fields are dataclasses of settings themselves."""

    def change(self, **settings: Any) -> Self:
        """Another recipe with these settings, of its own or of its parts: `recipe.change(epochs=40, erasing=0)`."""
        own: Any = self
        parts = {}
        for field in fields(own):
            part = getattr(self, field.name)
            if is_dataclass(part) and not isinstance(part, type):
                names = {one.name for one in fields(part)} & settings.keys()
                parts[field.name] = replace(part, **{name: settings.pop(name) for name in names})
        return replace(own, **settings, **parts)
