"""Dataclasses of settings, some of whose fields are such dataclasses themselves."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from labelflow.spec import known

T = TypeVar("T")


def change(settings: T, **values: Any) -> T:
    """The same settings with other values, of its own or of its parts, whose names need no prefix.

    A name that there is not is a ValueError that names the nearest.
    """
    names = set(setting_names(settings))
    for name in values:
        known(name, names, "setting", "--help")
    return _changed(settings, values)


def setting_names(settings: Any) -> Iterator[str]:
    """Of a dataclass and of its parts, but not of the parts themselves."""
    for one in fields(settings):
        part = getattr(settings, one.name)
        yield from setting_names(part) if _is_part(part) else [one.name]


def _changed(settings: Any, values: dict[str, Any]) -> Any:
    mine: dict[str, Any] = {}
    for one in fields(settings):
        part = getattr(settings, one.name)
        if _is_part(part):
            mine[one.name] = _changed(part, values)
        elif one.name in values:
            mine[one.name] = values[one.name]
    return replace(settings, **mine)


def _is_part(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)
