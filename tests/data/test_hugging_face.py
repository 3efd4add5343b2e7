"""Columns of several labels in Hugging Face data sets."""

import io
from pathlib import Path
from typing import Any

import datasets
import pytest
from PIL import Image

from labelflow.data import Data, Stream, open_source
from labelflow.data.settings import Columns
from labelflow.data.several import is_multi_label

NAMES = ["cat", "cow", "dog"]


def save(folder: Path, labels: list[Any], feature: Any, name: str = "labels") -> str:
    """A folder of Parquet files, train and val."""
    shown = io.BytesIO()
    Image.new("RGB", (8, 8)).save(shown, "PNG")
    features = datasets.Features({"image": datasets.Image(), name: feature})
    rows = {"image": [{"bytes": shown.getvalue(), "path": None}] * len(labels), name: labels}
    folder.mkdir()
    for split in ("train", "val"):
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


def test_another_column(tmp_path: Path) -> None:
    folder = save(tmp_path / "set", [0, 1, 2], datasets.ClassLabel(names=NAMES), "breed")
    data = Data(source=f"hfds/{folder}", root=str(tmp_path / "cache"))
    with pytest.raises(ValueError, match=r"column label with class names, or labels with lists of them, not \['image'"):
        open_source(data, "train")
    source = open_source(Data(**{**vars(data), "columns": Columns(label_column="breed")}), "train")
    assert [source.load(index)[1] for index in range(3)] == [0, 1, 2]
