"""Folders of images, sound and faulty."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


def noise(seed: int, height: int = 40, width: int = 30) -> Image.Image:
    """No two are the same."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8))


def fill(root: Path) -> Path:
    """Two classes, of six images to train on and two to evaluate on."""
    for number, (split, count) in enumerate((("train", 6), ("val", 2))):
        for label, name in enumerate(("cat", "dog")):
            (root / split / name).mkdir(parents=True)
            for index in range(count):
                noise(100 * number + 10 * label + index).save(root / split / name / f"{index}.jpg")
    return root


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return fill(tmp_path / "photos")


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of each fault."""
    root = fill(tmp_path_factory.mktemp("checking") / "planted")
    cat, dog, val = root / "train" / "cat", root / "train" / "dog", root / "val"
    whole = (cat / "0.jpg").read_bytes()
    (cat / "truncated.jpg").write_bytes(whole[: len(whole) // 2])
    (cat / "empty.jpg").touch()
    (cat / "text.jpg").write_text("not an image")
    (cat / "gone.jpg").symlink_to(root / "nowhere.jpg")
    for name in (b"new\nline.jpg", b"escape\x1b[2J.jpg", b"caf\xe9.jpg"):
        Path(os.fsdecode(os.fsencode(cat) + b"/" + name)).write_bytes(whole[:-300])
    Image.new("1", (20_000, 10_000)).save(cat / "bomb.png")
    noise(1).save(cat / "png.jpg", "PNG")
    noise(2, 1, 1).save(cat / "pixel\x1b.png")
    noise(3, 15, 200).save(cat / "thin.png")
    Image.new("1", (10_000, 6_000)).save(cat / "huge.png")
    noise(4).convert("CMYK").save(cat / "cmyk.jpg")
    Image.fromarray(np.full((40, 30), 30_000, np.uint16)).save(cat / "deep.png")
    noise(5).save(cat / "animated.gif", save_all=True, append_images=[noise(6)])
    exif = Image.Exif()
    exif[0x0112] = 6
    noise(7).save(cat / "turned.jpg", exif=exif)
    noise(8).convert("RGBA").save(cat / "alpha.png")
    shutil.copy(cat / "1.jpg", cat / "again.jpg")
    shutil.copy(cat / "2.jpg", dog / "mislabelled.jpg")
    shutil.copy(cat / "3.jpg", val / "cat" / "leaked.jpg")
    shutil.copy(cat / "4.jpg", val / "dog" / "both.jpg")
    (root / "train" / "owl").mkdir()
    noise(9).save(root / "train" / "owl" / "1.jpg")
    (root / "train" / "empty").mkdir()
    for number, place in enumerate((val / "fox", root / "train" / os.fsdecode(b"caf\xe9"))):
        place.mkdir()
        noise(20 + number).save(place / "1.jpg")
    return root
