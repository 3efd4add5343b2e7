"""Files read completely: the verdict of training, and what an image is."""

import io
import subprocess
import sys
import time
import warnings
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from labelflow.checking import files
from labelflow.checking.files import examine, examine_all
from labelflow.data import checked
from labelflow.data.checked import ANIMATED, ROTATED, TRANSPARENT, UNREADABLE, CheckedFiles
from labelflow.data.images import read

PIXELS = np.random.default_rng(0).integers(0, 256, (48, 32, 3)).astype(np.uint8)


def encoded(mode: str, format: str, **options: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(PIXELS).convert(mode).save(file, format, **options)
    return file.getvalue()


def with_orientation(orientation: int, format: str = "JPEG") -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded("RGB", format, exif=exif)


WHOLE = [
    *(encoded(mode, "JPEG", progressive=how) for mode in ("RGB", "L", "CMYK") for how in (False, True)),
    with_orientation(6),
    with_orientation(6, "TIFF"),
    *(encoded("RGB", format) for format in ("PNG", "WEBP", "BMP", "TIFF", "PPM")),
    *(encoded("P", format) for format in ("PNG", "GIF")),
]


@settings(max_examples=300)
@given(st.sampled_from(WHOLE), st.sampled_from(["cut", "hole", "bytes"]), st.floats(0, 1), st.randoms())
def test_the_verdict_is_that_of_training(
    tmp_path_factory: pytest.TempPathFactory, whole: bytes, damage: str, where: float, chance: object
) -> None:
    data, place = bytearray(whole), int(where * (len(whole) - 1))
    if damage == "cut":
        del data[place:]
    elif damage == "hole":
        del data[place : place + 50]
    else:
        for _ in range(5):
            data[chance.randrange(len(data))] = chance.randrange(256)
    path = tmp_path_factory.getbasetemp() / "damaged.jpg"
    path.write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of metadata
        found = examine(str(path))
        try:
            size = read(path).size
        except Exception:
            assert (found.flags, bool(found.kind), bool(found.reason)) == (UNREADABLE, True, True)
        else:
            assert (found.flags & UNREADABLE, found.kind, found.reason) == (0, "", "")
            assert (found.width, found.height) == size


@pytest.mark.parametrize("format", ["JPEG", "TIFF", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(10))
def test_sizes_are_those_that_training_sees(tmp_path: Path, format: str, orientation: int) -> None:
    path = tmp_path / "photo"
    path.write_bytes(with_orientation(orientation, format))
    found = examine(str(path))
    assert (found.width, found.height) == read(path).size == ((48, 32) if orientation in range(5, 9) else (32, 48))
    assert (found.flags & ROTATED > 0) == (orientation in range(2, 9))


@pytest.mark.parametrize(
    ("data", "format", "mode", "flags"),
    [
        (encoded("CMYK", "JPEG"), "JPEG", "CMYK", 0),
        (encoded("RGBA", "PNG"), "PNG", "RGBA", TRANSPARENT),
        (encoded("P", "PNG", transparency=3), "PNG", "P", TRANSPARENT),
        (encoded("P", "GIF", save_all=True, append_images=[Image.new("P", (32, 48))]), "GIF", "P", ANIMATED),
        (encoded("RGB", "MPO", save_all=True, append_images=[Image.new("RGB", (32, 48))]), "MPO", "RGB", 0),
    ],
)
def test_what_an_image_is(tmp_path: Path, data: bytes, format: str, mode: str, flags: int) -> None:
    path = tmp_path / "image"
    path.write_bytes(data)
    found = examine(str(path))
    assert (found.format, found.mode, found.flags, found.size) == (format, mode, flags, len(data))
    assert (found.modified, found.changed) == (path.stat().st_mtime_ns, path.stat().st_ctime_ns)


def test_contents_are_told_apart(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.png", "b.png", "c.png")]
    for path, data in zip(paths, (WHOLE[0], WHOLE[0], WHOLE[0] + b"\0"), strict=True):
        path.write_bytes(data)
    one, same, other = (examine(str(path)).content for path in paths)
    assert one == same != other


def check(root: Path, reread: bool = False) -> files.Files:
    return examine_all(CheckedFiles(root), sorted(map(str, root.rglob("*.jpg"))), 2, quiet=True, reread=reread)


def test_only_new_and_changed_files_are_read(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = check(photos)
    assert first.new == 16
    read_again: list[str] = []
    monkeypatch.setattr(files, "examine", lambda path: read_again.append(Path(path).name) or examine(path))
    again = check(photos)
    assert again.new == 0
    np.testing.assert_array_equal(again.rows, first.rows)
    (photos / "val" / "dog" / "0.jpg").rename(photos / "val" / "dog" / "renamed.jpg")
    (photos / "val" / "dog" / "1.jpg").write_bytes((photos / "val" / "dog" / "1.jpg").read_bytes())  # another time
    (photos / "train" / "cat" / "new.jpg").write_text("not an image")
    changed = check(photos)
    assert sorted(read_again) == ["1.jpg", "new.jpg", "renamed.jpg"]
    assert list(changed.unreadable.values()) == [("not an image", "cannot identify image file")]
    assert check(photos).unreadable == changed.unreadable
    assert read_again[3:] == ["new.jpg"]  # perhaps it can be read now
    assert len(list(CheckedFiles(photos).folder.iterdir())) == 1


def test_all_files_are_read_again_if_that_is_asked_for(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk may lose bits without another time."""
    check(photos)
    path = photos / "val" / "dog" / "1.jpg"
    path.write_bytes(b"")
    with monkeypatch.context() as patch:
        patch.setattr(checked, "_look", lambda path: next(states))
        rows = CheckedFiles(photos)
        paths = sorted(map(str, photos.rglob("*.jpg")))
        states = iter([tuple(rows.files[checked.STATE][place]) for place in rows._places(paths)])
        assert examine_all(rows, paths, 2, quiet=True).unreadable == {}
    assert list(check(photos, reread=True).unreadable.values()) == [("not an image", "the file is empty")]
    assert check(photos, reread=True).new == 16


def test_a_failure_on_the_way_loses_nothing(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(path: str) -> files.Examined:
        if path.endswith("dog/0.jpg"):
            raise RuntimeError("stop")
        return examine(path)

    with monkeypatch.context() as patch:
        patch.setattr(files, "examine", stop)
        with pytest.raises(RuntimeError, match="stop"):
            check(photos)
    assert 0 < check(photos).new <= 12


KILLED = """
import sys, time
from pathlib import Path
from labelflow.checking import files
from labelflow.data.checked import CheckedFiles

slowly, files.SAVE_EVERY, root = files.examine, 0.0, Path(sys.argv[1])
files.examine = lambda path: (time.sleep(0.1), slowly(path))[1]
files.examine_all(CheckedFiles(root), sorted(map(str, root.rglob("*.jpg"))), 1, True)
"""


def test_a_kill_loses_nothing_that_was_saved(photos: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED, photos]) as process:
        while len(CheckedFiles(photos).files) < 4 and process.poll() is None:
            time.sleep(0.02)
        process.kill()
    known = len(CheckedFiles(photos).files)
    assert 4 <= known < 16
    resumed = check(photos)
    assert resumed.new == 16 - known
    assert (resumed.rows["width"] == 30).all()


def test_a_lack_of_memory_is_not_believed_for_ever(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(files, "to_rgb", Mock(side_effect=[MemoryError, *[Image.new("RGB", (4, 4))] * 15]))
        assert list(check(photos).unreadable.values()) == [("inaccessible", "out of memory")]
    again = check(photos)
    assert (again.new, again.unreadable) == (1, {})


def test_what_may_pass_is_not_believed_for_ever(photos: Path) -> None:
    link = photos / "train" / "cat" / "link.jpg"
    link.symlink_to(photos.parent / "later.jpg")
    for _ in range(2):
        found = check(photos)
        assert list(found.unreadable.values()) == [("inaccessible", "No such file or directory")]
    assert found.new == 1
    (photos.parent / "later.jpg").write_bytes(WHOLE[0])
    assert (check(photos).new, check(photos).unreadable, check(photos).new) == (1, {}, 0)


def test_without_a_place_to_remember(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LABELFLOW_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(files, "SAVE_EVERY", 0.0)
    paths = sorted(map(str, photos.rglob("*.jpg")))
    for _ in range(2):
        found = examine_all(CheckedFiles(photos), paths, workers=1, quiet=False)
        assert (found.new, len(found.unreadable)) == (16, 0)
        assert [line for line in capsys.readouterr().out.splitlines() if "cannot remember" in line][1:] == []
