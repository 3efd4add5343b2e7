"""Columns of several labels in Hugging Face data sets."""

import io
from pathlib import Path
from typing import Any

import datasets
import pytest
from PIL import Image

from labelflow.data import Data, Stream, eval_batches, open_source
from labelflow.data.class_labels import labels_checksum, labels_of
from labelflow.data.settings import Columns
from labelflow.data.several import is_multi_label

NAMES = ["cat", "cow", "dog"]


def save(
    folder: Path, labels: list[Any], feature: Any, name: str = "labels", val: list[Any] | None = None, **more: Any
) -> str:
    """A folder of Parquet files, train and val. more: columns, each with what all samples have, and its feature."""
    shown = io.BytesIO()
    Image.new("RGB", (8, 8)).save(shown, "PNG")
    others = {column: kind for column, (_, kind) in more.items()}
    features = datasets.Features({"image": datasets.Image(), name: feature, **others})
    folder.mkdir()
    for split, own in (("train", labels), ("val", labels if val is None else val)):
        rows = {"image": [{"bytes": shown.getvalue(), "path": None}] * len(own), name: own}
        rows |= {column: [value] * len(own) for column, (value, _) in more.items()}
        datasets.Dataset.from_dict(rows, features=features).to_parquet(folder / f"{split}.parquet")
    return str(folder)


@pytest.mark.parametrize("texts", [False, True])
@pytest.mark.parametrize("kind", ["hfds", "hfids"])
def test_lists_of_labels(tmp_path: Path, texts: bool, kind: str) -> None:
    inner = datasets.Value("string") if texts else datasets.ClassLabel(names=NAMES)
    labels = [["dog", "cat"], [], ["cow"]] if texts else [[2, 0], [], [1]]
    folder = save(tmp_path / "set", labels, datasets.Sequence(inner))
    data = Data(source=f"{kind}/{folder}", root=str(tmp_path / "cache"), val_split="validation", train_samples=3)
    if texts and kind == "hfids":
        with pytest.raises(ValueError, match="does not say which classes labels has: --class-names"):
            open_source(data, "train")
        data = Data(**{**vars(data), "columns": Columns(class_names=("cat", "cow", "dog"))})
    source = open_source(data, "train")
    assert is_multi_label(source)
    assert source.classes == NAMES
    loaded = list(source.open(0)) if isinstance(source, Stream) else [source.load(index) for index in range(3)]
    assert sorted(label.tolist() for _, label in loaded) == [[0, 0, 0], [0, 1, 0], [1, 0, 1]]
    if not isinstance(source, Stream):
        assert labels_of(source).astype(int).tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]


def test_another_column(tmp_path: Path) -> None:
    folder = save(tmp_path / "set", [0, 1, 2], datasets.ClassLabel(names=NAMES), "breed")
    data = Data(source=f"hfds/{folder}", root=str(tmp_path / "cache"))
    with pytest.raises(ValueError, match=r"column label with class names, or labels with lists of them, not \['image'"):
        open_source(data, "train")
    source = open_source(Data(**{**vars(data), "columns": Columns(label_column="breed")}), "train")
    assert [source.load(index)[1] for index in range(3)] == [0, 1, 2]


def test_one_label_or_several(tmp_path: Path) -> None:
    """A data set that has both is refused, as a table is, until one of them is chosen."""
    kind = datasets.ClassLabel(names=NAMES)
    both = {"label": (1, kind), "fine": ([2], datasets.Sequence(kind))}
    folder = save(tmp_path / "set", [[2, 0]], datasets.Sequence(kind), **both)
    data = Data(source=f"hfds/{folder}", root=str(tmp_path / "cache"))
    with pytest.raises(ValueError, match="columns label and labels: --labels-column '' makes label its classes"):
        open_source(data, "train")
    for columns, expected in (
        (Columns(labels_column=""), 1),
        (Columns(label_column=""), [1, 0, 1]),
        (Columns(labels_column="fine"), [0, 0, 1]),
    ):
        source = open_source(Data(**{**vars(data), "columns": columns}), "train")
        label = source.load(0)[1]
        assert (label.tolist() if is_multi_label(source) else label) == expected


@pytest.mark.parametrize("setting", ["label_column", "labels_column"])
def test_a_column_that_was_asked_for_is_there(tmp_path: Path, setting: str) -> None:
    folder = save(tmp_path / "set", [0], datasets.ClassLabel(names=NAMES), "label")
    data = Data(source=f"hfds/{folder}", root=str(tmp_path / "cache"), columns=Columns(**{setting: "tags"}))
    with pytest.raises(ValueError, match=rf"no column tags \(--{setting.replace('_', '-')}\), but image, label"):
        open_source(data, "train")


TEXT, CLASS = datasets.Value("string"), datasets.ClassLabel(names=NAMES)
UNKNOWN = {
    "a text that training lacks": (datasets.Sequence(TEXT), ["cat"], [["cat"], [], ["cat", "elk"]], "'elk'"),
    "no text": (datasets.Sequence(TEXT), ["cat", None], [["cat"], [], [None]], "None"),
    "several, unlabelled": (datasets.Sequence(CLASS), [0], [[0], None, [1, -1]], "-1"),
    "unlabelled": (CLASS, 0, [0, 1, -1], "-1"),
    "nothing": (CLASS, 0, [0, 1, None], "None"),
}


@pytest.mark.parametrize("name", UNKNOWN)
@pytest.mark.parametrize("kind", ["hfds", "hfids"])
def test_a_label_that_is_no_class_is_no_unreadable_image(tmp_path: Path, name: str, kind: str) -> None:
    """It is refused when the data is opened; in a stream, when it comes."""
    feature, trained, labels, shown = UNKNOWN[name]
    column = "label" if feature is CLASS else "labels"
    folder = save(tmp_path / "set", [trained], feature, column, labels)
    names = ("cat",) if kind == "hfids" else ()
    data = Data(
        source=f"{kind}/{folder}",
        root=str(tmp_path / "cache"),
        val_split="validation",
        val_samples=3,
        skip_unreadable=3,
        image_size=16,
        workers=0,
        columns=Columns(class_names=names),
    )
    message = rf"{shown} in the column {column}, which is none of the \d classes"
    if kind == "hfds":
        with pytest.raises(ValueError, match=rf"set validation\[2\] has {message}"):
            open_source(data, "val")
    else:
        with pytest.raises(ValueError, match=f"a sample has {message}"):
            list(eval_batches(open_source(data, "val"), data, batch=3, rank=0, processes=1))


def test_labels_have_a_checksum(tmp_path: Path) -> None:
    cases = [[[0, 1], [2]], [[0], [1, 2]], [[0, 1], [0]], [[0, 1], [2]]]
    found = []
    for number, labels in enumerate(cases):
        folder = save(tmp_path / f"{number}", labels, datasets.Sequence(CLASS))
        found.append(labels_checksum(open_source(Data(source=f"hfds/{folder}", root=str(tmp_path / "cache")), "train")))
    assert found[0] == found[3]
    assert len(set(found)) == 3
