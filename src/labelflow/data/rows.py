"""Tables of images, CSV or Parquet, as arrays: some 50 bytes a row.

Shapes: N rows, L labels of all of them.
"""

import csv
import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from labelflow.data.columns import check_asked, choose_labels
from labelflow.data.settings import Columns
from labelflow.data.several import LabelLists

IMAGE_COLUMNS = ("image", "file", "file_name", "path")
EVERY = "*"  # each column is a class
HOT = {"1": True, "1.0": True, "True": True, "true": True, "0": False, "0.0": False, "False": False, "false": False}

Values = dict[str, Any]  # of a row, by column


class Rows(NamedTuple):
    """A table as arrays."""

    paths: bytes  # of the images, one after another
    ends: ndarray  # (N + 1,) int64: where each begins and the next one ends
    lists: LabelLists
    names: list[str]  # of the labels
    columns: list[str]  # each of which is a class; empty if labels are in one
    several: bool  # whether images have any number of labels
    split: ndarray  # (N,) int32: a place in splits
    splits: dict[str, int]  # the names of parts; empty if there is no such column

    def path(self, row: int) -> str:
        return os.fsdecode(self.paths[self.ends[row] : self.ends[row + 1]])


class _Layout(NamedTuple):
    """Which columns hold what."""

    image: str
    labels: str  # EVERY: the hot ones
    several: bool
    split: str  # "" if there is none
    hot: list[str]


def read_table(path: Path, columns: Columns, whole: bool = False) -> Rows:
    """whole: it needs no column of parts, even one that was asked for."""
    if not path.is_file():
        raise ValueError(f"there is no table {path}")
    header, read = READERS[path.suffix.lower()](path)
    layout = _layout(path, header, columns, whole)
    paths, ends = bytearray(), array("q", [0])
    ids, starts, split, hashes = array("i"), array("q", [0]), array("i"), array("q")
    names: dict[str, int] = {}
    splits: dict[str, int] = {}
    labels_of = partial(_labels, path, layout, columns.label_separator)
    for number, row in enumerate(read(_columns(layout)), start=1):
        image = row[layout.image]
        if not isinstance(image, str) or not image:
            what = "nothing" if not image else f"a {type(image).__name__}"
            raise ValueError(
                f"row {number} of {path} has {what} in the column {layout.image}, which should be the path of an image"
            )
        paths += os.fsencode(image)
        ends.append(len(paths))
        hashes.append(hash(image))
        ids.extend(names.setdefault(name, len(names)) for name in labels_of(number, row))
        starts.append(len(ids))
        split.append(splits.setdefault(str(row[layout.split]), len(splits)) if layout.split else 0)
    if len(ends) == 1:
        raise ValueError(f"{path} is empty: it has no rows")
    lists = LabelLists(np.array(ids, np.int32), np.array(starts, np.int64), len(names))
    rows = Rows(
        bytes(paths),
        np.array(ends, np.int64),
        lists,
        list(names),
        layout.hot,
        layout.several,
        np.array(split, np.int32),
        splits,
    )
    _check_duplicates(rows, np.array(hashes), path)
    return rows


def _layout(path: Path, header: Sequence[str], columns: Columns, whole: bool) -> _Layout:
    wanted = (columns.image_column,) if columns.image_column else IMAGE_COLUMNS
    image = next((name for name in wanted if name in header), "")
    has = f"{path} has the columns {', '.join(header)}"
    if not image:
        raise ValueError(f"{has}, but no {' or '.join(wanted)}; which one holds paths? --image-column NAME")
    every = columns.labels_column == EVERY
    asked = ["label_column", *([] if every else ["labels_column"]), *([] if whole else ["split_column"])]
    check_asked(columns, asked, header, str(path))
    split = columns.split_column if columns.split_column in header else ""
    if every:
        hot = [name for name in header if name not in (image, split)]
        if not hot:
            raise ValueError(f"{has}, but none for a class")
        return _Layout(image, EVERY, True, split, hot)
    labels = choose_labels(columns, lambda name, several: name in header, str(path))
    if labels is None:
        raise ValueError(
            f"{has}, but neither {columns.label_column} nor {columns.labels_column}; which one holds classes? "
            "--label-column NAME, or --labels-column NAME where images have several"
        )
    return _Layout(image, *labels, split, [])


def _columns(layout: _Layout) -> list[str]:
    labels = layout.hot or [layout.labels]
    return [layout.image, *labels, *([layout.split] if layout.split else [])]


def _labels(path: Path, layout: _Layout, separator: str, number: int, row: Values) -> Sequence[str]:
    """The classes of an image."""
    if layout.hot:
        cells = {name: str(row[name]) for name in layout.hot}
        if wrong := next((name for name, cell in cells.items() if cell not in HOT), ""):
            raise ValueError(f"row {number} of {path} has {cells[wrong]!r} for the class {wrong}, but not 0 or 1")
        return [name for name, cell in cells.items() if HOT[cell]]
    value = row[layout.labels]
    if not layout.several:
        name = "" if value is None else str(value).strip()
        if not name or isinstance(value, list):
            raise ValueError(f"row {number} of {path} should have one class in the column {layout.labels}: {value!r}")
        return [name]
    parts = value if isinstance(value, list) else ("" if value is None else str(value)).split(separator)
    return list(dict.fromkeys(name for part in parts if (name := str(part).strip())))


def _check_duplicates(rows: Rows, hashes: ndarray, path: Path) -> None:
    """hashes: (N,), of the paths"""
    order = np.argsort(hashes, kind="stable")
    for place in np.flatnonzero(hashes[order][1:] == hashes[order][:-1]).tolist():
        first, second = order[place : place + 2].tolist()
        if rows.path(first) == rows.path(second):
            hint = "; all labels of an image belong in one row" if rows.several else ""
            raise ValueError(f"{path} lists {rows.path(first)} twice, in rows {first + 1} and {second + 1}{hint}")


Read = Callable[[list[str]], Iterator[Values]]  # from the names of columns to rows


def _read_csv(path: Path) -> tuple[list[str], Read]:
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            header = next(csv.reader(file), [])
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}") from None
    if not header:
        raise ValueError(f"{path} is empty: it has no header")

    def read(names: list[str]) -> Iterator[Values]:
        if again := next((name for name in names if header.count(name) > 1), ""):
            raise ValueError(f"{path} has several columns called {again}; give each its own name")
        places = [header.index(name) for name in names]
        try:
            with open(path, newline="", encoding="utf-8-sig") as file:
                rows = csv.reader(file)
                next(rows)
                for number, row in enumerate(filter(None, rows), start=1):
                    if len(row) != len(header):
                        raise ValueError(
                            f"row {number} of {path} has {len(row)} cells, but there are {len(header)} columns"
                        )
                    yield {name: row[place] for name, place in zip(names, places, strict=True)}
        except (UnicodeDecodeError, csv.Error) as error:
            raise ValueError(f"cannot read {path}: {error}") from None

    return header, read


def _read_parquet(path: Path) -> tuple[list[str], Read]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise ValueError(f"{path} needs pyarrow: pip install pyarrow") from None
    try:
        file = ParquetFile(path)
    except (ArrowException, OSError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None

    def read(names: list[str]) -> Iterator[Values]:
        for batch in file.iter_batches(columns=names):
            columns = [batch.column(name).to_pylist() for name in names]
            for row in zip(*columns, strict=True):
                yield dict(zip(names, row, strict=True))

    return file.schema_arrow.names, read


READERS = {".csv": _read_csv, ".parquet": _read_parquet}


def is_table(source: str) -> bool:
    """Whether it is a table rather than a folder; a file with another ending is refused."""
    path = Path(source)
    if path.is_file() and path.suffix.lower() not in READERS:
        raise ValueError(f"{source} is neither a folder of images nor a table: those end in {' or '.join(READERS)}")
    return path.suffix.lower() in READERS and not path.is_dir()
