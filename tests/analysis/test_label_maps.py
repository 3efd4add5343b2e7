"""Sheets of dense labels: a class has one colour, wherever it is."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy import ndarray
from PIL import Image

from labelflow.analysis import label_maps
from labelflow.analysis.drawn import PALETTE, class_colours
from labelflow.analysis.label_maps import GAP, LINE, SIDE, LabelMap, label_picture

CAT, DOG, FOX = 0, 1, 2


def sheet(monkeypatch: pytest.MonkeyPatch, *maps: list[list[int]], classes: int = 3) -> Image.Image:
    """Black images with certain labels."""
    found = [
        LabelMap(Image.new("RGB", (8, 8)), "cat", np.array(cells), np.ones(np.shape(cells), np.float32))
        for cells in maps
    ]
    monkeypatch.setattr(label_maps, "read_map", lambda store, source, index: found[index])
    names: Any = SimpleNamespace(manifest=SimpleNamespace(classes=tuple(f"class {n}" for n in range(classes))))
    return label_picture(names, found, len(found))  # type: ignore[arg-type]


def cell(page: Image.Image, tile: int, row: int, column: int, side: int = 2) -> ndarray:
    """The colour in the middle of a cell of a map, of side × side cells."""
    step = SIDE / side
    x = GAP + tile % 2 * (2 * SIDE + 2 * GAP) + SIDE + GAP + int((column + 0.5) * step)
    y = GAP + tile // 2 * (SIDE + 2 * LINE + GAP) + int((row + 0.5) * step)
    return np.array(page.getpixel((x, y)))


def test_a_class_has_one_colour_on_the_whole_sheet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cat is the commonest class of the first map, the second of the second, the rarest of the third."""
    maps = [[CAT, CAT], [CAT, DOG]], [[DOG, DOG], [DOG, CAT]], [[FOX, FOX], [DOG, CAT]]
    page = sheet(monkeypatch, *maps)
    seen: dict[int, set[tuple[int, ...]]] = {}
    for tile, cells in enumerate(maps):
        for row, line in enumerate(cells):
            for column, number in enumerate(line):
                seen.setdefault(number, set()).add(tuple(cell(page, tile, row, column).tolist()))
    assert [len(colours) for colours in seen.values()] == [1, 1, 1]
    assert len(set.union(*seen.values())) == 3


def test_the_legend_has_all_classes_of_the_sheet(monkeypatch: pytest.MonkeyPatch) -> None:
    legends: list[Any] = []
    monkeypatch.setattr(label_maps, "with_legend", lambda picture, entries: legends.append(entries) or picture)
    sheet(monkeypatch, [[CAT, CAT], [CAT, DOG]], [[DOG, DOG], [DOG, FOX]])
    many = np.arange(25).reshape(5, 5).tolist()
    sheet(monkeypatch, many, classes=25)
    assert [name for name, _ in legends[0]] == ["class 1", "class 0", "class 2"]
    assert len(legends[1]) == 18
    assert legends[1][-1] == ("other classes", (127, 127, 127))


def test_surer_cells_are_stronger(monkeypatch: pytest.MonkeyPatch) -> None:
    sure = LabelMap(Image.new("RGB", (8, 8)), "cat", np.zeros((1, 2), int), np.array([[1.0, 0.0]], np.float32))
    monkeypatch.setattr(label_maps, "read_map", lambda store, source, index: sure)
    names: Any = SimpleNamespace(manifest=SimpleNamespace(classes=("cat",)))
    page = label_picture(names, [sure], 1)  # type: ignore[list-item,arg-type]
    strong, weak = (cell(page, 0, 0, column) for column in (0, 1))
    assert strong == pytest.approx(215 / 255 * np.array([230, 25, 75]), abs=1)
    assert weak == pytest.approx(40 / 255 * np.array([230, 25, 75]), abs=1)


def test_the_palette_can_be_told_apart() -> None:
    colours = class_colours(Counter({number: 100 - number for number in range(40)}))
    assert list(colours) == list(range(len(PALETTE)))
    values = np.array(list(colours.values()), float)
    apart = np.abs(values[:, None] - values[None]).sum(-1) + 999 * np.eye(len(values))
    assert apart.min() > 70
