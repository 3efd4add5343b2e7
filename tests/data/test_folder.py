"""Folders of images, as people have them."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from labelflow.data import Data, Folder, Unreadable, eval_batches, open_source, train_batches
from labelflow.data.folder import order_of
from labelflow.data.images import read
from labelflow.data.scan import image_files


def picture(path: Path, shade: int = 128, mode: str = "RGB", **save: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (24, 20), (shade, 255 - shade, 40)).convert(mode).save(path, **save)
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name in ("cat", "dog"):
        for number in range(10):
            picture(tmp_path / "photos" / name / f"{number}.jpg", shade=20 * number)
    return tmp_path / "photos"


def test_one_folder_is_split_by_names_and_seed_alone(photos: Path) -> None:
    train, val = Folder(photos, "train", 0.3), Folder(photos, "val", 0.3)
    assert (len(train), len(val)) == (14, 6)
    assert not set(train.files()) & set(val.files())
    assert val.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert train.classes == ["cat", "dog"]
    assert list(Folder(photos, "val", 0.3).files()) == list(val.files())
    assert list(Folder(photos, "val", 0.3, seed=1).files()) != list(val.files())
    picture(photos / "cat" / "new.png")
    picture(photos / "cat" / "._hidden.png")
    picture(photos / "cat" / ".ipynb_checkpoints" / "new.png")
    assert len(Folder(photos, "train", 0.3)) + len(Folder(photos, "val", 0.3)) == 21
    assert len(set(val.files()) - set(Folder(photos, "val", 0.3).files())) <= 1


def test_names_of_files_may_be_any_bytes(photos: Path) -> None:
    name = os.fsencode(photos / "cat") + b"/caf\xe9.jpg"
    try:
        os.rename(photos / "cat" / "0.jpg", name)
    except OSError:
        pytest.skip("not on this file system")
    halves = [Folder(photos, split, val_fraction=0.5) for split in ("train", "val")]
    paths = [os.fsencode(half.name(index)) for half in halves for index in range(len(half)) if half.load(index)]
    assert name in paths
    os.rename(photos / "cat", os.fsencode(photos) + b"/\xe9")
    with pytest.raises(ValueError, match=r"not UTF-8: rename '\\udce9'"):
        Folder(photos)


def test_what_is_set_aside_never_changes() -> None:
    """By the hash of a name's UTF-8 bytes."""
    for name in ("cat/1.jpg", "chat/été.jpg"):
        assert order_of(3, name) == hashlib.blake2b(b"3 " + name.encode(), digest_size=8).digest()
    assert order_of(0, "cat/1.jpg").hex() == "ba1e905c97a13937"


def test_train_and_val(photos: Path) -> None:
    for name in ("cat", "dog"):
        picture(photos.parent / "both" / "validation" / name / "deep" / "1.PNG")
        picture(photos.parent / "both" / "train" / name / "1.jpg")
    both = Folder(photos.parent / "both", "val")
    assert both.name(1).endswith("validation/dog/deep/1.PNG")
    assert both.load(1)[1] == 1


def test_malformed_folders(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no folder"):
        Folder(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="no class folders"):
        Folder(tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(ValueError, match="without images: a"):
        Folder(tmp_path)
    picture(tmp_path / "b" / "train" / "x" / "1.png")
    with pytest.raises(ValueError, match="no 'val'"):
        Folder(tmp_path / "b")
    picture(tmp_path / "b" / "val" / "y" / "1.png")
    with pytest.raises(ValueError, match=r"classes missing from .*: y"):
        Folder(tmp_path / "b", "val")


def test_links_are_followed_unless_they_lead_back(tmp_path: Path) -> None:
    """One that does would show its images 40 times, under 40 names."""
    for name in ("a", "b"):
        picture(tmp_path / "data" / name / "1.png")
        picture(tmp_path / "data" / name / "2.png")
    picture(tmp_path / "elsewhere" / "3.png")
    (tmp_path / "data" / "a" / "more").symlink_to(tmp_path / "elsewhere")
    assert image_files(tmp_path / "data" / "a") == ["1.png", "2.png", "more/3.png"]
    for place in (tmp_path / "data" / "a" / "back", tmp_path / "elsewhere" / "back"):
        place.symlink_to(tmp_path / "data" / "a" if place.parent.name == "a" else tmp_path / "elsewhere")
        with pytest.raises(ValueError, match=r"back is a link to .*, which it lies in"):
            Folder(tmp_path / "data")
        place.unlink()


@pytest.mark.parametrize("mode", ["L", "P", "CMYK", "RGBA", "LA", "1", "I;16"])
def test_colour_modes(tmp_path: Path, mode: str) -> None:
    if mode == "I;16":
        path = tmp_path / "image.png"
        Image.fromarray(np.full((20, 24), 30000, dtype=np.uint16)).save(path)
        assert abs(np.asarray(read(path)).mean() - 30000 / 256) < 1
    else:
        path = picture(tmp_path / ("image.jpg" if mode == "CMYK" else "image.png"), 200, mode)
    image = read(path)
    assert image.mode == "RGB"
    assert image.size == (24, 20)
    if mode in ("P", "CMYK", "RGBA"):
        assert np.abs(np.asarray(image).mean((0, 1)) - (200, 55, 40)).max() < 25


@pytest.mark.parametrize(
    ("value", "kind", "grey"),
    [
        (255, np.uint16, 0),  # dark, though 255 would be white in eight bits
        (256, np.uint16, 1),
        (65535, np.uint16, 255),
        (0.0, np.float32, 0),
        (0.5, np.float32, 128),
        (1.0, np.float32, 255),
    ],
)
def test_deep_images_keep_their_brightness(tmp_path: Path, value: float, kind: type, grey: int) -> None:
    Image.fromarray(np.full((4, 4), value, kind)).save(tmp_path / "deep.tif")
    assert np.unique(np.asarray(read(tmp_path / "deep.tif"))).tolist() == [grey]


@pytest.mark.parametrize("value", [-0.5, 1.5, 200.0, np.nan])
def test_floats_that_are_not_from_0_to_1_are_refused(tmp_path: Path, value: float) -> None:
    Image.fromarray(np.full((4, 4), value, np.float32)).save(tmp_path / "deep.tif")
    with pytest.raises(ValueError, match="should be from 0 to 1"):
        read(tmp_path / "deep.tif")


def test_exif_turns_an_image(tmp_path: Path) -> None:
    image = Image.new("RGB", (24, 12))
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(tmp_path / "turned.jpg", exif=exif)
    assert read(tmp_path / "turned.jpg").size == (12, 24)


def test_what_cannot_be_read_is_told_by_name_and_skipped_up_to_a_limit(photos: Path) -> None:
    whole = (photos / "cat" / "3.jpg").read_bytes()
    (photos / "cat" / "3.jpg").write_bytes(whole[: len(whole) // 2])
    (photos / "dog" / "4.jpg").write_text("not an image")
    data = Data(source=str(photos), image_size=32, workers=0, val_fraction=0.5)

    def problems(limit: int) -> list[str]:
        told: list[str] = []
        unreadable = Unreadable(limit, told.append)
        train, val = open_source(data, "train"), open_source(data, "val")
        for batch in train_batches(
            train, data, batch=5, micro_batch=5, updates=2, seed=0, rank=0, processes=1, first_update=0
        ):
            unreadable(batch.problems)
            assert len(batch.pixels) == 5
        counted = 0.0
        for batch in eval_batches(val, data, batch=4, rank=0, processes=1):
            unreadable(batch.problems)
            counted += float(batch.weights.sum())
        assert counted == len(val) - sum(name in problem for problem in told for name in val.files())
        return told

    assert sorted(Path(problem.split(":")[0]).name for problem in problems(2)) == ["3.jpg", "4.jpg"]
    with pytest.raises(ValueError, match=r"\.jpg.*--skip-unreadable"):
        problems(1)
    with pytest.raises(ValueError, match="none was allowed"):
        problems(0)


def test_all_of_other_data_is_evaluated_on(tmp_path: Path) -> None:
    """A folder of class folders, or one that has a val/ and no train/."""
    for place in ("plain", "half/val"):
        for name in ("cat", "dog"):
            (tmp_path / place / name).mkdir(parents=True)
            for number in range(3):
                Image.new("RGB", (4, 4)).save(tmp_path / place / name / f"{number}.png")
    for place in ("plain", "half"):
        assert len(Folder(tmp_path / place, "val", val_fraction=1)) == 6
        assert list(Folder(tmp_path / place, "val", val_fraction=1).classes) == ["cat", "dog"]
    with pytest.raises(ValueError, match="val_fraction must lie between 0 and 1, not 1"):
        Folder(tmp_path / "plain", "train", val_fraction=1)
