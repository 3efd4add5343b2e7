"""The labels of all samples, against those that come with the images."""

import io
import shutil
from pathlib import Path
from types import SimpleNamespace

import datasets
import numpy as np
import pytest
from PIL import Image

from helpers import pack
from labelflow.data import Data, Source, open_map_style, open_source
from labelflow.data.class_labels import class_counts, labels_of
from labelflow.data.sources import Indexed, _torchvision_labels


def png(shade: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (shade, 0, 0)).save(file, "png")
    return file.getvalue()


def folder(root: Path) -> Data:
    for name, count in (("cat", 5), ("dog", 3)):
        (root / name).mkdir()
        for number in range(count):
            (root / name / f"{number}.png").write_bytes(png(number))
    return Data(source=str(root), val_fraction=0.3)


def shards(root: Path) -> Data:
    members = [
        member
        for number in range(7)
        for member in ((f"{number}.png", png(number)), (f"{number}.cls", b"%d" % (number % 3)))
    ]
    pack(root / "train-0000.tar", members)
    return Data(source="wds", root=str(root), train_split="train-{0000..0000}.tar")


def hugging_face(root: Path) -> Data:
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"])})
    rows = {"image": [{"bytes": png(number), "path": None} for number in range(7)], "label": [0, 2, 2, 1, 2, 0, 2]}
    datasets.Dataset.from_dict(rows, features=features).to_parquet(root / "train-0.parquet")
    return Data(source=f"hfds/{root}", root=str(root / "cache"))


def world(root: Path) -> Data:
    return Data(source="world(train=23)", image_size=32)


@pytest.mark.parametrize("make", [folder, shards, hugging_face, world])
def test_they_are_those_of_the_images(make: object, tmp_path: Path) -> None:
    source: Source = open_map_style(make(tmp_path), "train")  # type: ignore[operator]
    one_by_one = [source.load(index)[1] for index in range(len(source))]
    assert labels_of(source).tolist() == one_by_one
    counts = class_counts(labels_of(source), len(source.classes))
    assert counts.tolist() == [one_by_one.count(label) for label in range(len(source.classes))]


def test_no_image_is_opened(tmp_path: Path) -> None:
    source = open_map_style(folder(tmp_path), "train")
    shutil.rmtree(tmp_path)
    assert class_counts(labels_of(source), 2).tolist() == [3, 2]


def test_torchvision_calls_them_by_three_names() -> None:
    parts = [
        SimpleNamespace(targets=[2, 0]),  # CIFAR
        SimpleNamespace(_labels=[1]),  # Flowers102, OxfordIIITPet, Food101
        SimpleNamespace(_samples=[("a.jpg", 4), ("b.jpg", 3)]),  # StanfordCars
    ]
    joined = SimpleNamespace(datasets=parts)
    source = Indexed(joined, list("abcde"), "torch/x train", pair=tuple, list_labels=_torchvision_labels)
    assert labels_of(source).tolist() == [2, 0, 1, 4, 3]


def test_several_classes_of_an_image() -> None:
    has = np.array([[True, True, False], [False, True, False]])
    assert class_counts(labels_of(SimpleNamespace(labels=has)), 3).tolist() == [1, 2, 0]


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_stream_has_none(tmp_path: Path) -> None:
    shards(tmp_path)
    remote = Data(
        source="wds", root=f"file:{tmp_path}", train_split="train-{0000..0000}.tar", train_samples=7, classes=3
    )
    with pytest.raises(ValueError, match="a stream does not tell the labels of its samples beforehand"):
        labels_of(open_source(remote, "train"))
