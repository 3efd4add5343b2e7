"""Images that a table lists."""

import csv
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from labelflow.data import Data, Folder, eval_batches, open_source, train_batches
from labelflow.data.settings import Columns
from labelflow.data.table import Table

Rows = Sequence[Sequence[Any]]
SEVERAL: Rows = [
    ("image", "labels", "split"),
    ("a/0.png", "dog;cat", "train"),
    ("a/1.png", "cat", "train"),
    ("b/2.png", "", "train"),
    ("b/3.png", "dog; cat;dog", "val"),
    ("b/4.png", "", "val"),
]


def write(path: Path, rows: Rows) -> Path:
    """A table, and the images that it names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".csv":
        with open(path, "w", newline="") as file:
            csv.writer(file).writerows(rows)
    else:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        columns = {name: list(values) for name, values in zip(rows[0], zip(*rows[1:], strict=True), strict=True)}
        parquet.write_table(pyarrow.table(columns), path)
    for number, row in enumerate(rows[1:]):
        image = path.parent / row[0]
        image.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (24, 20), (10 * number, 0, 0)).save(image)
    return path


def listed(rows: Rows) -> Rows:
    """The same with lists of labels, as Parquet may have them."""
    return [rows[0], *((image, [one for one in labels.split(";") if one], split) for image, labels, split in rows[1:])]


@pytest.mark.parametrize("kind", ["csv", "parquet", "lists"])
def test_several_labels(tmp_path: Path, kind: str) -> None:
    rows = listed(SEVERAL) if kind == "lists" else SEVERAL
    path = write(tmp_path / f"labels.{'csv' if kind == 'csv' else 'parquet'}", rows)
    train, val = (open_source(Data(source=str(path)), split) for split in ("train", "val"))
    assert isinstance(train, Table)
    assert isinstance(val, Table)
    assert (train.multi_label, train.classes, val.classes) == (True, ["cat", "dog"], ["cat", "dog"])
    assert train.labels.tolist() == [[True, True], [True, False], [False, False]]
    assert val.labels.tolist() == [[True, True], [False, False]]
    image, label = train.load(1)
    assert np.asarray(image)[0, 0, 0] == 10
    assert label.tolist() == [1, 0]
    assert list(train.files()) == [str(tmp_path / name) for name in ("a/0.png", "a/1.png", "b/2.png")]
    assert [train.key(index) for index in range(3)] == ["a/0", "a/1", "b/2"]
    assert train.files()[1:][0] == train.name(1)


def test_batches_of_several_labels(tmp_path: Path) -> None:
    data = Data(source=str(write(tmp_path / "labels.csv", SEVERAL)), image_size=16, workers=0, skip_unreadable=1)
    train, val = (open_source(data, split) for split in ("train", "val"))
    (batch,) = train_batches(train, data, batch=3, micro_batch=3, updates=1, seed=0)
    assert sorted(batch.labels.tolist()) == [[0, 0], [1, 0], [1, 1]]
    (tmp_path / "b" / "3.png").write_text("no image")
    (batch,) = eval_batches(val, data, batch=2, rank=0, processes=1)
    assert batch.labels.tolist() == [[0, 0], [0, 0]]  # the first could not be read, and does not count
    assert batch.weights.tolist() == [0, 1]


def test_one_label_is_as_of_a_folder(tmp_path: Path) -> None:
    """The same samples under the same keys; and what is set aside has the same number of each class."""
    rows = [("file", "label"), *((f"{name}/{number}.png", name) for name in ("cat", "dog") for number in range(10))]
    path = write(tmp_path / "photos" / "labels.csv", rows)
    tables = {split: Table(path, split, val_fraction=0.3) for split in ("train", "val")}
    folders = {split: Folder(tmp_path / "photos", split, 0.3) for split in ("train", "val")}
    for split, table in tables.items():
        assert not table.multi_label
        assert table.labels.tolist() == folders[split].labels.tolist() == sorted(table.labels.tolist())
        assert [table.load(index)[1] for index in range(len(table))] == table.labels.tolist()
    keys = [{source.key(index) for index in range(len(source))} for source in tables.values()]
    assert not keys[0] & keys[1]
    assert keys[0] | keys[1] == {source.key(index) for source in folders.values() for index in range(len(source))}
    again, other = (Table(path, "val", val_fraction=0.3, seed=seed) for seed in (0, 1))
    assert list(again.files()) == list(tables["val"].files()) != list(other.files())


def test_what_is_set_aside_of_several_labels(tmp_path: Path) -> None:
    rows = [("image", "labels"), *((f"{number}.png", "ab"[number % 2]) for number in range(10))]
    path = write(tmp_path / "labels.csv", rows)
    train, val, whole = (
        Table(path, split, val_fraction=part) for split, part in [("train", 0.2), ("val", 0.2), ("val", 1)]
    )
    assert (len(train), len(val), len(whole)) == (8, 2, 10)
    assert sorted([*train.files(), *val.files()]) == sorted(whole.files())


def test_other_columns(tmp_path: Path) -> None:
    rows = [("where", "tags", "fold"), ("0.png", "b|a", "one"), ("1.png", "b", "two"), ("2.png", "a", "three")]
    data = Data(
        source=str(write(tmp_path / "x.csv", rows)),
        columns=Columns("where", "", "tags", label_separator="|", split_column="fold", class_names=("b", "c", "a")),
        train_split="one",
        val_split="two",
    )
    told: list[str] = []
    train, val = (open_source(data, split, told.append) for split in ("train", "val"))
    assert (train.classes, train.load(0)[1].tolist()) == (["b", "c", "a"], [1, 0, 1])
    assert (len(train), len(val), val.load(0)[1].tolist()) == (1, 1, [1, 0, 0])
    assert told == [f"left out 1 images of {tmp_path / 'x.csv'} that are neither one nor two"]


@pytest.mark.parametrize("setting", ["image_column", "label_column", "labels_column", "split_column"])
def test_a_column_that_was_asked_for_is_there(tmp_path: Path, setting: str) -> None:
    """Otherwise a misspelt one would mean a random split, or another column of labels."""
    rows = [("image", "label", "fold"), ("0.png", "a", "train"), ("1.png", "a", "val")]
    path, columns = write(tmp_path / "x.csv", rows), Columns(**{setting: "foldd"})
    with pytest.raises(
        ValueError, match=rf"(?s)(?=.*foldd)(?=.*--{setting.replace('_', '-')})(?=.*image, label, fold)"
    ):
        Table(path, "train", columns)
    if setting == "split_column":  # of the run, and not of other data, which it is evaluated on
        assert len(Table(path, "val", columns, val_fraction=1)) == 2


def test_a_column_that_was_asked_for_is_preferred(tmp_path: Path) -> None:
    """To the default ones, which happen to be there."""
    rows = [("image", "label", "labels", "tags", "breed"), *((f"{n}.png", "a", "b", "c;d", "e") for n in range(2))]
    path = write(tmp_path / "x.csv", rows)
    for columns, several, classes in (
        (Columns(labels_column="tags"), True, ["c", "d"]),
        (Columns(label_column="breed"), False, ["e"]),
        (Columns(label_column="tags"), False, ["c;d"]),
        (Columns(labels_column=""), False, ["a"]),
        (Columns(label_column=""), True, ["b"]),
    ):
        source = Table(path, "train", columns)
        assert (source.multi_label, source.classes) == (several, classes)
    with pytest.raises(ValueError, match=r"has the columns breed and tags: --labels-column '' makes breed its classes"):
        Table(path, "train", Columns(label_column="breed", labels_column="tags"))


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_column_for_each_class(tmp_path: Path, ending: str) -> None:
    rows = [("image", "dog", "cat", "cow", "split"), ("0.png", 1, 0, 0, "train"), ("1.png", 1, 1, 0, "val")]
    path = write(tmp_path / f"labels.{ending}", rows)
    source = Table(path, "val", Columns(labels_column="*"))
    assert (source.classes, source.load(0)[1].tolist()) == (["dog", "cat", "cow"], [1, 1, 0])
    with pytest.raises(ValueError, match=r"row 2 of .* has 'maybe' for the class cat, but not 0 or 1"):
        Table(
            write(tmp_path / "other.csv", [*rows[:2], ("1.png", 1, "maybe", 0, "val")]),
            "val",
            Columns(labels_column="*"),
        )


def test_numbers_are_classes_in_their_order(tmp_path: Path) -> None:
    rows = [("image", "label", "split"), *((f"{n}.png", n, "train" if n else "val") for n in (10, 9, 2))]
    rows.append(("x.png", 9, "val"))
    for ending in ("csv", "parquet"):
        source = Table(write(tmp_path / f"labels.{ending}", rows), "train")
        assert source.classes == ["2", "9", "10"]
        assert source.labels.tolist() == [2, 1, 0]


def test_absolute_paths(tmp_path: Path) -> None:
    image = tmp_path / "elsewhere" / "0.png"
    rows = [("image", "label", "split"), (str(image), "cat", "train"), (str(image.with_name("1.png")), "cat", "val")]
    source = Table(write(tmp_path / "tables" / "labels.csv", rows), "train")
    assert source.name(0) == str(image)
    assert source.key(0) == "../elsewhere/0"


WRONG = {
    "no label column": (
        [("image", "tags"), ("0.png", "a")],
        r"the columns image, tags, but neither label nor labels",
    ),
    "no image column": ([("photo", "label"), ("0.png", "a")], r"has the columns photo, label, but no image or file"),
    "both": ([("image", "label", "labels"), ("0.png", "a", "a;b")], r"--labels-column '' makes label its classes"),
    "no rows": ([("image", "label")], r"labels\.csv is empty: it has no rows"),
    "nothing at all": ([], r"labels\.csv is empty: it has no header"),
    "a ragged row": ([("image", "label"), ("0.png", "a", "b")], r"row 1 of .* has 3 cells, but there are 2 columns"),
    "one name for two columns": (
        [("image", "label", "label"), ("0.png", "a", "b")],
        r"labels\.csv has several columns called label; give each its own name",
    ),
    "no path": ([("image", "label"), ("", "a")], r"row 1 of .* has nothing in the column image"),
    "no class": ([("image", "label"), ("0.png", "a"), ("1.png", " ")], r"row 2 of .* should have one class"),
    "twice": (
        [("image", "labels"), ("0.png", "a"), ("0.png", "b")],
        r"0\.png twice, in rows 1 and 2; all labels",
    ),
    "no labels": ([("image", "labels"), ("0.png", ""), ("1.png", "")], r"none of the train images of .* has a label"),
    "one image": ([("image", "label"), ("0.png", "a")], r"too few images"),
    "no val": ([("image", "label", "split"), ("0.png", "a", "train")], r"no image to evaluate on: its column split"),
    "a class of val alone": (
        [("image", "labels", "split"), ("0.png", "a", "train"), ("1.png", "a;zebra", "val")],
        r"the val images of .*labels\.csv have classes that its training images lack: zebra",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_tables(tmp_path: Path, name: str) -> None:
    rows, message = WRONG[name]
    path = tmp_path / "labels.csv"
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows(rows)
    with pytest.raises(ValueError, match=message):
        Table(path, "val" if name in ("one image", "a class of val alone") else "train")


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no table"):
        open_source(Data(source=str(tmp_path / "none.csv")), "train")
    for name, message in (("labels.txt", "neither a folder of images nor a table"), ("labels.parquet", "cannot read")):
        (tmp_path / name).write_text("no table")
        with pytest.raises(ValueError, match=message):
            open_source(Data(source=str(tmp_path / name)), "train")
    (tmp_path / "labels.csv").write_bytes("image,label\n\xe9.png,a\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"labels\.csv"):
        open_source(Data(source=str(tmp_path / "labels.csv")), "train")
    os.makedirs(tmp_path / "folder.csv")
    with pytest.raises(ValueError, match="no class folders"):  # a folder is one, whatever it is called
        open_source(Data(source=str(tmp_path / "folder.csv")), "train")


def test_a_class_that_is_not_named(tmp_path: Path) -> None:
    path = write(tmp_path / "labels.csv", SEVERAL)
    with pytest.raises(ValueError, match="classes that are none of the class names: dog"):
        Table(path, "train", Columns(class_names=("cat", "cow")))
