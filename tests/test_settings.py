"""Dataclasses of settings within dataclasses of settings."""

from dataclasses import dataclass, field

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
