"""What a classifier says about images: rows for programs, tables for people."""

import csv
import io
import json
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from labelflow.data import Unreadable
from labelflow.data.loader import make_loader
from labelflow.data.pictures import PictureBatch, Pictures, collate_pictures
from labelflow.engine.progress import Counted
from labelflow.files import atomic_write
from labelflow.spec import printable
from labelflow.tables import Table

SHOWN = 20  # rows in a notebook
THRESHOLD = 0.5  # the probability above which an image has a label, where it may have several


class Prediction(NamedTuple):
    """What a classifier says about one image."""

    file: str  # "image 3" where it is not from a file
    top: list[tuple[str, float]]  # the likeliest classes and their probabilities, the likeliest first; where an image
    # may have several labels, those above the threshold, or none

    @property
    def label(self) -> str:
        return self.top[0][0]

    @property
    def probability(self) -> float:
        return self.top[0][1]

    @property
    def labels(self) -> list[str]:
        return [label for label, _ in self.top]


class Predictions(list[Prediction], Table):
    """One row an image, in the order of the images; a notebook shows them as a table.

    >>> found = Predictions([Prediction("a.jpg", [("cat", 0.9), ("dog", 0.1)])])
    >>> found[0].label, found[0].probability
    ('cat', 0.9)
    >>> print(found.to_csv().strip())
    file,label,probability,label_2,probability_2
    a.jpg,cat,0.9,dog,0.1
    """

    head: ClassVar[tuple[str, ...]] = ("file", "class", "probability", "then")  # of cells
    columns: ClassVar[list[str]] = ["file", "label", "probability"]  # of CSV, where there are no rows

    def to_csv(self) -> str:
        """file, label, probability, label_2, probability_2, …; as `records`"""
        written, rows = io.StringIO(), self.records
        writer = csv.DictWriter(written, rows[0] if rows else self.columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return written.getvalue()

    def to_jsonl(self) -> str:
        """A line of JSON for each image: file, label, probability, and top, a list of labels and probabilities."""
        lines = []
        for row in self:
            top = [{"label": label, "probability": _rounded(value)} for label, value in row.top]
            lines.append(json.dumps({"file": row.file, **top[0], "top": top}, ensure_ascii=False))
        return "".join(f"{line}\n" for line in lines)

    def save(self, path: Path | str) -> None:
        """As CSV or lines of JSON: `predictions.csv`, `predictions.jsonl`. Bytes of a file's name that are not UTF-8
        become `\\udc80` to `\\udcff`, as Python writes them."""
        path = Path(path)
        text = FORMATS[format_of(path)](self)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as draft:
            draft.write_bytes(text.encode(errors="backslashreplace"))

    def cells(self) -> list[tuple[str, ...]]:
        """What people read below `head`."""
        return [
            (
                printable(row.file),
                printable(row.label),
                _percent(row.probability),
                ", ".join(f"{printable(label)} {_percent(value)}" for label, value in row.top[1:]),
            )
            for row in self
        ]

    def __repr__(self) -> str:
        rows = ["  ".join(row[:3]) for row in type(self)(self[:SHOWN]).cells()]
        return "\n".join([*rows, self._rest()]).strip() or "no predictions"

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in self.head)
        rows = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
            for row in type(self)(self[:SHOWN]).cells()
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{self._rest()}"

    @property
    def records(self) -> list[dict[str, Any]]:
        """The rows of `to_csv`."""
        rows = []
        for row in self:
            columns: dict[str, Any] = {"file": row.file}
            for rank, (label, value) in enumerate(row.top, start=1):
                end = f"_{rank}" if rank > 1 else ""
                columns |= {f"label{end}": label, f"probability{end}": _rounded(value)}
            rows.append(columns)
        return rows

    def _rest(self) -> str:
        return f"and {len(self) - SHOWN} more" if len(self) > SHOWN else ""


class LabelPredictions(Predictions):
    """The same where an image may have several labels, or none.

    >>> found = LabelPredictions([Prediction("a.jpg", [("cat", 0.9), ("dog", 0.6)]), Prediction("b.jpg", [])])
    >>> found[0].labels
    ['cat', 'dog']
    >>> print(found.to_csv().strip())
    file,labels,probabilities
    a.jpg,cat;dog,0.9;0.6
    b.jpg,,
    >>> LabelPredictions([Prediction("a.jpg", [("cat;dog", 0.9)])]).to_csv()
    Traceback (most recent call last):
    ValueError: the class 'cat;dog' has a ; in its name, which separates labels: write .jsonl instead
    """

    head = ("file", "labels")
    columns: ClassVar = ["file", "labels", "probabilities"]

    def to_jsonl(self) -> str:
        """A line of JSON for each image: file, and labels, a list of labels and probabilities."""
        lines = []
        for row in self:
            labels = [{"label": label, "probability": _rounded(value)} for label, value in row.top]
            lines.append(json.dumps({"file": row.file, "labels": labels}, ensure_ascii=False))
        return "".join(f"{line}\n" for line in lines)

    def cells(self) -> list[tuple[str, ...]]:
        found = [", ".join(f"{printable(label)} {_percent(value)}" for label, value in row.top) for row in self]
        return [(printable(row.file), labels or "none") for row, labels in zip(self, found, strict=True)]

    @property
    def records(self) -> list[dict[str, Any]]:
        """The rows of `to_csv`, which `labelflow train --data` reads: labels and probabilities, separated by ;"""
        if mixed := next((label for row in self for label in row.labels if ";" in label), ""):
            raise ValueError(f"the class {mixed!r} has a ; in its name, which separates labels: write .jsonl instead")
        return [
            {
                "file": row.file,
                "labels": ";".join(row.labels),
                "probabilities": ";".join(str(_rounded(value)) for _, value in row.top),
            }
            for row in self
        ]


FORMATS: dict[str, Callable[[Predictions], str]] = {"csv": Predictions.to_csv, "jsonl": Predictions.to_jsonl}


def format_of(path: Path) -> str:
    """By the ending of a file."""
    ending = path.suffix.lower().removeprefix(".")
    if ending not in FORMATS:
        raise ValueError(f"predictions are saved as .csv or .jsonl, not as {path}")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file")
    return ending


def _rounded(probability: float) -> float:
    return round(probability, 6)


def _percent(probability: float) -> str:
    return f"{100 * probability:.1f} %"


def read_batches(
    pictures: Pictures, batch: int, workers: int = 0, skip_unreadable: int = 0, quiet: bool = False
) -> Iterator[PictureBatch]:
    """Images that can be read, in batches; progress, and the names of the others, on stderr."""
    if batch < 1:
        raise ValueError(f"batch must be at least 1, not {batch}")
    if workers < -1 or skip_unreadable < 0:
        raise ValueError(f"workers must be ≥ -1 and skip_unreadable ≥ 0, not {workers} and {skip_unreadable}")
    workers = workers if len(pictures) > batch else 0  # not worth a process
    with Counted("predicting", "images", len(pictures), quiet=quiet, aside=True) as progress:
        unreadable = Unreadable(skip_unreadable, progress.say)
        for read in make_loader(pictures, collate_pictures, workers, batch_size=batch):
            unreadable(read.problems)
            if read.names:
                yield read
            progress.advance(len(read.names) + len(read.problems))
