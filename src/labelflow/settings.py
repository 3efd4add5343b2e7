"""Dataclasses of settings, some of whose fields are such dataclasses themselves."""

from collections.abc import Iterator
from dataclasses import asdict, fields, is_dataclass, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar

from labelflow.spec import known

T = TypeVar("T")
ACCEPTED: dict[type, Any] = {bool: bool, int: Integral, float: Real, str: (str, Path), tuple: (tuple, list)}


def change(settings: T, **values: Any) -> T:
    """The same settings with other values, of its own or of its parts, whose names need no prefix.

    A name that there is not is a ValueError that names the nearest, and so is a value of another type.
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
        before = getattr(settings, one.name)
        if _is_part(before):
            mine[one.name] = _changed(before, values)
        elif one.name in values:
            mine[one.name] = _typed(one.name, before, values[one.name])
    return replace(settings, **mine)


def _typed(name: str, before: Any, value: Any) -> Any:
    """The value in the type that the setting has: 1 as 1.0, a list as a tuple, a path as its text."""
    kind = type(before)
    if kind not in ACCEPTED:
        return value
    if not isinstance(value, ACCEPTED[kind]) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{name} must be of type {kind.__name__}, such as {before!r}, not {value!r}")
    return kind(value)


def _is_part(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def differences(one: Any, other: Any) -> Iterator[tuple[str, Any, Any]]:
    """Where two differ: name, one's value, the other's."""
    second = dict(flat(asdict(other)))
    for name, value in flat(asdict(one)):
        if second[name] != value:
            yield name, value, second[name]


def flat(values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What `asdict` made of settings and their parts, under their own names."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flat(value)
        else:
            yield name, value


def from_json(kind: type[Any], values: dict[str, Any]) -> Any:
    """A dataclass of what `asdict` made of it."""
    parts: dict[str, Any] = {field.name: field.default_factory for field in fields(kind)}  # their own classes
    settings = {}
    for name, value in values.items():
        if isinstance(value, dict):
            settings[name] = from_json(parts[name], value)
        else:
            settings[name] = tuple(value) if isinstance(value, list) else value
    return kind(**settings)
