"""Imports that wait until they are needed, so that help and typos are answered without torch."""

import ast
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, TypeVar

T = TypeVar("T")


def exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` for the names that a package imports below `if TYPE_CHECKING:`.

    Type checkers and readers see plain imports; when the program runs, a name is imported when it is first used.
    """
    module = sys.modules[package]
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: str(node.module) for node in imports for alias in node.names}

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes[name]
        value = import_module(f"{package}.{name}") if home == package else getattr(import_module(home), name)
        setattr(module, name, value)
        return value

    return find, lambda: sorted({*vars(module), *module.__all__})


def deferred(place: str) -> Callable[..., Any]:
    """The callable at `module:name`, imported when it is first called."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return resolve_name(place)(*args, **kwargs)

    return call


class Registry(Mapping[str, T]):
    """What is at `module` or `module:name`, by name: known without an import, imported when it is looked up."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self.places = dict(places)

    def __getitem__(self, name: str) -> T:
        found: T = resolve_name(self.places[name])
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)
