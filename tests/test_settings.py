"""Dataclasses of settings within dataclasses of settings."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from labelflow.settings import change, setting_names


@dataclass(frozen=True)
class Inner:
    depth: int = 1


@dataclass(frozen=True)
class Middle:
    inner: Inner = field(default_factory=Inner)
    width: int = 2


@dataclass(frozen=True)
class Outer:
    middle: Middle = field(default_factory=Middle)
    name: str = "a"


def test_names_reach_through_all_parts() -> None:
    assert list(setting_names(Outer())) == ["depth", "width", "name"]
    changed = change(Outer(), depth=5, name="b")
    assert changed == Outer(Middle(Inner(5), 2), "b")


def test_nothing_that_came_in_changes() -> None:
    before = Outer()
    change(before, depth=9)
    assert before == Outer(Middle(Inner(1), 2), "a")


@pytest.mark.parametrize("name", ["detph", "dept"])
def test_a_misspelled_name_is_told_the_right_one(name: str) -> None:
    with pytest.raises(ValueError, match=f"there is no setting '{name}'; did you mean depth"):
        change(Outer(), **{name: 1})


def test_a_part_is_not_a_setting() -> None:
    with pytest.raises(ValueError, match="no setting 'middle'"):
        change(Outer(), middle=3)


@dataclass(frozen=True)
class Typed:
    count: int = 1
    rate: float = 0.5
    name: str = "a"
    sizes: tuple[int, ...] = (1, 2)
    on: bool = False


def test_values_get_the_type_of_the_setting() -> None:
    changed = change(Typed(), rate=1, name=Path("b/c"), sizes=[3], count=np.int64(4))
    assert changed == Typed(4, 1.0, "b/c", (3,))
    assert [type(value) for value in (changed.count, changed.rate, changed.name, changed.sizes)] == [
        *(int, float, str, tuple)
    ]


@pytest.mark.parametrize(
    "wrong", [{"count": "3"}, {"count": 1.5}, {"count": True}, {"rate": None}, {"name": 3}, {"sizes": 3}, {"on": 1}]
)
def test_values_of_another_type_are_refused(wrong: dict[str, object]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=f"^{name} must be of type .*, such as .*, not "):
        change(Typed(), **wrong)
