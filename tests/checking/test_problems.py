"""Duplicates and limits, compared with a look at each pair of files."""

from itertools import pairwise
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from labelflow.checking.files import Files
from labelflow.checking.listing import Listing
from labelflow.checking.problems import KINDS, duplicates, find_problems
from labelflow.data.checked import FILE, UNREADABLE
from labelflow.data.images import EXTENSIONS

FACTS = st.tuples(st.integers(0, 6), st.integers(0, 2), st.integers(0, 1), st.booleans())  # content, class, part, whole


def folder(facts: list[tuple[int, int, int, bool]]) -> tuple[Listing, Files]:
    rows = np.zeros(len(facts), FILE)
    rows["content"] = [content for content, *_ in facts]
    rows["flags"] = [0 if whole else UNREADABLE for *_, whole in facts]
    rows["width"], rows["height"], rows["format"] = 300, 200, "JPEG"
    labels, parts = (np.array([one[place] for one in facts], np.intp) for place in (1, 2))
    root = Path("photos")
    listing = Listing(
        root,
        [f"photos/{place}.jpg" for place in range(len(facts))],
        list("abc"),
        labels,
        {"train": root, "": root},
        parts,
    )
    unreadable = {place: ("damaged", "broken") for place, (*_, whole) in enumerate(facts) if not whole}
    return listing, Files(rows, unreadable, 0)


@given(st.lists(FACTS, max_size=20))
def test_duplicates(facts: list[tuple[int, int, int, bool]]) -> None:
    listing, files = folder(facts)
    groups = duplicates(files.rows)
    whole = [place for place, (*_, is_whole) in enumerate(facts) if is_whole]
    alike = {(a, b) for a in whole for b in whole if a < b and facts[a][0] == facts[b][0]}
    assert {(a, b) for group in groups for a in group for b in group if a < b} == alike
    assert all(a < b for group in groups for a, b in pairwise(group))
    problems = find_problems(listing, files, 16, 50.0)
    kinds = {kind: {one.file for one in problems if one.problem == kind} for kind in KINDS}
    assert len(kinds["damaged"]) == len(facts) - len(whole)
    # each group of two or more is told once for every file but the first, which the others are compared with
    for first, *others in groups:
        for place in others:
            name = listing.paths[place]
            other_class, other_part = (facts[place][at] != facts[first][at] for at in (1, 2))
            assert (name in kinds["in several classes"]) == other_class
            assert (name in kinds["in train and val"]) == other_part
            assert (name in kinds["duplicate"]) == (not other_class and not other_part)
    several = {name for kind in ("in several classes", "in train and val", "duplicate") for name in kinds[kind]}
    assert len(several) == sum(len(group) - 1 for group in groups)


def test_limits_are_where_they_are_said_to_be() -> None:
    listing, files = folder([(place, 0, 0, True) for place in range(4)])
    files.rows["width"], files.rows["height"] = [16, 15, 1000, 1000], [900, 16, 2000, 2001]
    found = [tuple(one) for one in find_problems(listing, files, 16, 2.0) if one.file in listing.paths]
    assert found == [("photos/1.jpg", "tiny", "15×16 pixels"), ("photos/3.jpg", "huge", "1000×2001 pixels")]


def test_each_extension_stands_for_a_format() -> None:
    for extension in EXTENSIONS:
        listing, files = folder([(0, 0, 0, True)])
        found = find_problems(listing._replace(paths=[f"a{extension.upper()}"]), files, 16, 50.0)
        assert ("wrong extension" in [one.problem for one in found]) == (extension not in (".jpg", ".jpeg"))
