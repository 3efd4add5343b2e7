"""Images that a table lists: their paths, their labels and, if it says so, the part that they belong to.

Shapes: N images, C classes, L labels of all images.
"""

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy import ndarray

from labelflow.data.folder import SPLITS, Listed, aside_count, order_of, shorten
from labelflow.data.rows import Rows, read_table
from labelflow.data.settings import Columns
from labelflow.data.several import LabelLists, multi_hot


class Table(Listed):
    """The images of a CSV or Parquet file, in its order; a column `label` names the class of each, or `labels` any
    number of classes.

    A column `split` says which images are trained on. Without it a part is set aside by the images' paths and the seed
    alone, in each class as of a folder; of images with several labels, from all of them. A val_fraction of 1 is all of
    the table, or of its val. Classes are sorted by name.
    """

    paths: "TablePaths"

    def __init__(
        self,
        path: Path | str,
        split: str = "train",
        columns: Columns | None = None,
        val_fraction: float = 0.1,
        seed: int = 0,
        parts: tuple[str, str] = ("train", "val"),
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        """parts: what the split column calls the images to train on and those to evaluate on."""
        self.table, self.root, columns = Path(path), Path(path).parent, columns or Columns()
        whole = split == "val" and val_fraction == 1  # other data, to evaluate on
        rows = read_table(self.table, columns, whole)
        train, val = (_first(rows.splits, (name, *SPLITS[kind])) for name, kind in zip(parts, SPLITS, strict=True))
        if whole:
            chosen = _of_part(rows, val)
        elif not rows.splits:
            chosen = _aside(rows, val_fraction, seed) == (split == "val")
        elif train is None or val is None:
            raise ValueError(
                f"{path} has no image to {'train' if train is None else 'evaluate'} on: its column "
                f"{columns.split_column} should say {parts[0]} or {parts[1]}, not {shorten(sorted(rows.splits))}"
            )
        else:
            chosen = _of_part(rows, val if split == "val" else train)
            if split == "train" and (others := np.count_nonzero((rows.split != train) & (rows.split != val))):
                tell(f"left out {others} images of {path} that are neither {parts[0]} nor {parts[1]}")
        places = np.flatnonzero(chosen)
        if not len(places):
            raise ValueError(f"{path} has too few images: it needs one to train on and one to evaluate on")
        lists, given = rows.lists.at(places), list(columns.class_names) or rows.columns
        self.classes = given or _sorted(rows.names, rows.lists.at(np.flatnonzero(_of_part(rows, train))).ids)
        if unknown := sorted({rows.names[number] for number in np.unique(lists.ids)} - set(self.classes)):
            missing = "that are none of the class names" if given else "that its training images lack"
            hint = "" if given else "; --class-names can name all there are"
            raise ValueError(f"the {split} images of {path} have classes {missing}: {shorten(unknown)}{hint}")
        if not len(lists.ids):
            raise ValueError(f"none of the {split} images of {path} has a label")
        self.multi_label = rows.several
        self.lists = _renumbered(lists, rows.names, self.classes)
        self.paths = TablePaths(str(self.root), rows.paths, rows.ends, places)

    @cached_property
    def labels(self) -> ndarray:  # type: ignore[override]
        """(N,) class ids, or (N, C) bool where images have several."""
        return self.lists.dense() if self.multi_label else self.lists.ids

    def label(self, index: int) -> Any:
        own = self.lists.of(index)
        return multi_hot(own, len(self.classes)) if self.multi_label else int(own[0])

    def key(self, index: int) -> str:
        """The image's path below the table's folder, without its ending, as a folder's."""
        return os.path.splitext(super().key(index))[0]


class TablePaths(Sequence[str]):
    """Images of a table, by their paths, which are made when they are asked for."""

    def __init__(self, root: str, paths: bytes, ends: ndarray, places: ndarray) -> None:
        """paths: of all rows, one after another; ends: (rows + 1,); places: (N,), the rows."""
        self.root, self.paths, self.ends, self.places = root, paths, ends, places

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[str]: ...
    def __getitem__(self, at: int | slice) -> str | Sequence[str]:
        if isinstance(at, slice):
            return TablePaths(self.root, self.paths, self.ends, self.places[at])
        row = int(self.places[at])
        return os.path.join(self.root, os.fsdecode(self.paths[self.ends[row] : self.ends[row + 1]]))


def _first(splits: dict[str, int], names: Sequence[str]) -> int | None:
    """The number of the first of these that there is."""
    return next((splits[name] for name in names if name in splits), None)


def _of_part(rows: Rows, part: int | None) -> ndarray:
    """Which images belong to it, (N,) bool: all of a table without it."""
    return np.full(len(rows.split), True) if part is None else rows.split == part


def _aside(rows: Rows, fraction: float, seed: int) -> ndarray:
    """Which images are set aside for validation: (N,) bool."""
    if not 0 < fraction < 1:
        raise ValueError(f"val_fraction must lie between 0 and 1, not {fraction}")
    hashes = np.frombuffer(b"".join(order_of(seed, rows.path(row)) for row in range(len(rows.split))), ">u8")
    aside = np.zeros(len(hashes), bool)
    groups = [np.arange(len(hashes))]
    if not rows.several:
        order = np.argsort(rows.lists.ids, kind="stable")
        groups = np.split(order, np.cumsum(np.bincount(rows.lists.ids))[:-1])
    for group in groups:
        ranked = group[np.argsort(hashes[group], kind="stable")]
        aside[ranked[: aside_count(group, fraction)]] = True
    return aside


def _sorted(names: list[str], ids: ndarray) -> list[str]:
    """The names of these labels; numbers in their order."""
    used = [names[number] for number in np.unique(ids)]
    return sorted(used, key=int) if all(name.isdecimal() for name in used) else sorted(used)


def _renumbered(lists: LabelLists, names: list[str], classes: list[str]) -> LabelLists:
    """Labels as places in `classes`."""
    places = {name: place for place, name in enumerate(classes)}
    numbers = np.array([places.get(name, -1) for name in names], np.int32)
    return LabelLists(numbers[lists.ids], lists.starts, len(classes))
