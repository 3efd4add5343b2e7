"""A check lists what training lists."""

from pathlib import Path

import pytest

from labelflow.checking.listing import list_images
from labelflow.data import Folder


def test_train_and_val(photos: Path) -> None:
    listing = list_images(photos)
    train, val = Folder(photos, "train"), Folder(photos, "val")
    assert listing.paths == [*train.files(), *val.files()]
    assert listing.labels.tolist() == [half.load(index)[1] for half in (train, val) for index in range(len(half))]
    assert (listing.classes, listing.parts.tolist()) == (["cat", "dog"], [0] * 12 + [1] * 4)
    assert listing.splits == {"train": photos / "train", "val": photos / "val"}
    assert listing.class_counts().tolist() == [[6, 2], [6, 2]]
    assert listing.below(listing.paths[-1]) == "val/dog/1.jpg"


def test_class_folders_are_one_part(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever training would set aside."""
    monkeypatch.chdir(photos / "train")
    listing = list_images(".")
    halves = [Folder(".", "train").files(), Folder(".", "val").files()]
    assert listing.paths == sorted([*halves[0], *halves[1]])
    assert listing.class_counts().tolist() == [[6], [6]]
    assert listing.below(listing.paths[0]) == "cat/0.jpg"


def test_images_without_classes(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = list_images(photos / "train" / "cat")
    assert (len(listing.paths), listing.classes, len(listing.class_counts())) == (6, [], 0)
    monkeypatch.chdir(photos / "train" / "cat")
    assert list_images(".").paths == [f"{number}.jpg" for number in range(6)]


def test_what_training_refuses_is_refused(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no folder .*nowhere"):
        list_images(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty has no images; they end in \.bmp"):
        list_images(tmp_path / "empty")
    (photos / "train" / "owl").mkdir()
    with pytest.raises(ValueError, match="class folders without images: owl"):
        list_images(photos)
