"""A check lists what training lists."""

import os
import shutil
from pathlib import Path

import pytest

from labelflow.checking.listing import list_images
from labelflow.checking.problems import KINDS
from labelflow.checking.run import check_data
from labelflow.data import Folder
from labelflow.data.scan import below


def test_train_and_val(photos: Path) -> None:
    listing = list_images(photos)
    train, val = Folder(photos, "train"), Folder(photos, "val")
    assert listing.paths == [*train.files(), *val.files()]
    assert listing.labels.tolist() == [half.load(index)[1] for half in (train, val) for index in range(len(half))]
    assert (listing.classes, listing.parts.tolist()) == (["cat", "dog"], [0] * 12 + [1] * 4)
    assert listing.splits == {"train": photos / "train", "val": photos / "val"}
    assert listing.class_counts().tolist() == [[6, 2], [6, 2]]


def test_class_folders_are_one_part(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever training would set aside."""
    monkeypatch.chdir(photos / "train")
    listing = list_images(".")
    halves = [Folder(".", "train").files(), Folder(".", "val").files()]
    assert listing.paths == sorted([*halves[0], *halves[1]])
    assert listing.class_counts().tolist() == [[6], [6]]


def test_images_without_classes(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = list_images(photos / "train" / "cat")
    assert (len(listing.paths), listing.classes, len(listing.class_counts())) == (6, [], 0)
    monkeypatch.chdir(photos / "train" / "cat")
    assert list_images(".").paths == [f"{number}.jpg" for number in range(6)]


def test_no_images(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no folder .*nowhere"):
        list_images(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty has no images; they end in \.bmp"):
        list_images(tmp_path / "empty")


def break_folder(photos: Path, how: str) -> None:
    if how == "empty class":
        (photos / "train" / "owl").mkdir()
    elif how == "class only in val":
        (photos / "train" / "dog").rename(photos / "dog")
    elif how == "images beside class folders":
        for path in sorted((photos / "val").rglob("*.jpg")):
            path.rename(photos / "val" / f"{path.parent.name}{path.name}")
    elif how == "empty val":
        shutil.rmtree(photos / "val")
        (photos / "val").mkdir()
    elif how == "not UTF-8":
        (photos / "train" / "dog").rename(photos / "train" / os.fsdecode(b"caf\xe9"))
        (photos / "val" / "dog").rename(photos / "val" / os.fsdecode(b"caf\xe9"))
    else:
        shutil.rmtree(photos / how.removeprefix("no "))


@pytest.mark.parametrize(
    ("how", "images", "errors"),
    [
        ("empty class", 16, [("train/owl", "empty class")]),
        ("class only in val", 10, [("train/dog", "class not in train")]),
        ("images beside class folders", 16, [("val", "no class folders")]),
        ("empty val", 12, [("val", "no class folders")]),
        ("not UTF-8", 16, [(f"{half}/caf\udce9", "name not UTF-8") for half in ("train", "val")]),
        ("no val", 12, [("val", "train or val missing")]),
        ("no train", 4, [("train", "train or val missing")]),
    ],
)
def test_what_training_refuses_is_found(photos: Path, how: str, images: int, errors: list[tuple[str, str]]) -> None:
    break_folder(photos, how)
    with pytest.raises(ValueError, match=r"."):  # whatever it says
        [Folder(photos, half) for half in ("train", "val")]
    found = check_data(photos, photos.parent / "out", quiet=True)
    assert (found.summary["images"], found.summary["readable"], found.passed) == (images, images, False)
    assert [
        (below(one.file, photos), one.problem) for one in found.problems if KINDS[one.problem].level == "error"
    ] == errors


def test_a_stray_folder_beside_images(photos: Path) -> None:
    (photos / "train" / "cat" / "thumbnails").mkdir()
    found = check_data(photos / "train" / "cat", photos.parent / "out", quiet=True)
    assert (found.summary["images"], [one.problem for one in found.problems]) == (6, ["empty class"])
