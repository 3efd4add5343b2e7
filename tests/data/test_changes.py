"""What is noticed of data that changed, and what is said about it."""

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import get_ident

import numpy as np
import pytest

from helpers import pack
from labelflow.data import Data, Stream, World, changes, open_source, waiting
from labelflow.data.changes import DataFiles
from labelflow.data.folder import Folder
from labelflow.files import CHECKSUMS


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for split, count in (("train", 4), ("val", 2)):
        for name in ("cat", "dog"):
            (tmp_path / "photos" / split / name).mkdir(parents=True)
            for number in range(count):
                (tmp_path / "photos" / split / name / f"{number}.png").write_bytes(b"pixels")
    return tmp_path / "photos"


def parts(folder: Path) -> list[Folder]:
    return [Folder(folder, split) for split in ("train", "val")]


def looked(run: Path, sources: Sequence[object], resumed: bool = True, contents: bool = False) -> list[str]:
    """What is said when a run starts or is resumed, as `train_run` does."""
    files = DataFiles(run, sources, resumed)
    lines = list(files.compare(contents))
    run.mkdir(exist_ok=True)
    files.write()
    return lines


def replace(path: Path, content: bytes, seconds: float = 10.0) -> None:
    """With a time that is so much later."""
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns + int(1e9 * seconds)
    path.write_bytes(content)
    os.utime(path, ns=times)


def touch_all(folder: Path) -> None:
    for path in folder.rglob("*.*"):
        replace(path, path.read_bytes())


NOTICED: dict[str, tuple[Callable[[Path], object], str]] = {
    "another size": (
        lambda photos: replace(photos / "train/cat/2.png", b"other pixels"),
        r"1 file of another size \(.*photos/train/cat/2\.png\)",
    ),
    "of several": (
        lambda photos: [replace(photos / f"{name}/1.png", b"") for name in ("val/dog", "train/dog", "val/cat")],
        r"3 files of another size \(first .*photos/train/dog/1\.png\)",
    ),
    "another size, the same time": (
        lambda photos: replace(photos / "val/cat/0.png", b"other pixels", seconds=0),
        r"1 file of another size \(.*photos/val/cat/0\.png\)",
    ),
    "removed": (lambda photos: (photos / "val/cat/1.png").unlink(), r"1 file missing \(.*photos/val/cat/1\.png\)"),
    "added": (lambda photos: (photos / "train/dog/10.png").touch(), r"1 file added \(.*photos/train/dog/10\.png\)"),
    "renamed": (
        lambda photos: (photos / "train/dog/0.png").rename(photos / "train/dog/7.png"),
        r"1 file missing \(.*train/dog/0\.png\), 1 file added \(.*train/dog/7\.png\)",
    ),
    "gone behind a link": (
        lambda photos: [(photos / "val/cat/1.png").unlink(), (photos / "val/cat/1.png").symlink_to("nowhere")],
        r"1 file of another size \(.*val/cat/1\.png\)",
    ),
}


@pytest.mark.parametrize("case", NOTICED)
@pytest.mark.parametrize("contents", [False, True])
def test_other_files_are_refused(case: str, contents: bool, photos: Path, tmp_path: Path) -> None:
    change, said = NOTICED[case]
    assert looked(tmp_path / "run", parts(photos), resumed=False, contents=contents) == []
    record = (tmp_path / "run" / changes.RECORD).read_bytes()
    change(photos)
    for _ in range(2):  # once is not all
        with pytest.raises(ValueError, match=rf"the data of .*run has changed: {said}; restore .* --init .*run\)$"):
            looked(tmp_path / "run", parts(photos))
    assert (tmp_path / "run" / changes.RECORD).read_bytes() == record


class TestTheSameSizes:
    """Other times are told, and other contents refused where they are known."""

    @pytest.mark.parametrize("pixels", [b"pixels", b"PIXELS"])
    def test_contents_are_unknown_unless_they_are_asked_for(self, pixels: bytes, photos: Path, tmp_path: Path) -> None:
        looked(tmp_path / "run", parts(photos), resumed=False)
        replace(photos / "train/cat/2.png", pixels)
        for _ in range(2):
            (line,) = looked(tmp_path / "run", parts(photos))
            assert line.startswith(f"1 file modified ({photos}/train/cat/2.png) since {tmp_path}/run was started, but")
            assert "contents were not compared" in line
            assert "--hash-data" in line

    def test_touched(self, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Only files with other times are read, and these once, unless all are asked for."""
        read: list[str] = []
        hash_of = changes._hash
        monkeypatch.setattr(changes, "_hash", lambda path: read.append(path) or hash_of(path))
        looked(tmp_path / "run", parts(photos), resumed=False, contents=True)
        assert len(read) == 12
        replace(photos / "train/cat/2.png", b"pixels")
        assert [looked(tmp_path / "run", parts(photos)) for _ in range(2)] == [[], []]
        assert read[12:] == [str(photos / "train/cat/2.png")]
        assert looked(tmp_path / "run", parts(photos), contents=True) == []
        assert len(read) == 12 + 1 + 12

    @pytest.mark.parametrize(("asked", "seconds"), [(False, 10), (True, 10), (True, 0)])
    def test_replaced(self, asked: bool, seconds: int, photos: Path, tmp_path: Path) -> None:
        looked(tmp_path / "run", parts(photos), resumed=False, contents=True)
        touch_all(photos)
        replace(photos / "val/dog/1.png", b"PIXELS", seconds)
        for _ in range(2):
            with pytest.raises(ValueError, match=r"1 file with other contents \(.*val/dog/1\.png\); restore"):
                looked(tmp_path / "run", parts(photos), contents=asked)
        replace(photos / "val/dog/1.png", b"pixels")
        assert looked(tmp_path / "run", parts(photos), contents=asked) == []

    def test_contents_can_be_recorded_later(self, photos: Path, tmp_path: Path) -> None:
        looked(tmp_path / "run", parts(photos), resumed=False)
        assert looked(tmp_path / "run", parts(photos), contents=True) == []
        touch_all(photos)
        assert looked(tmp_path / "run", parts(photos)) == []
        replace(photos / "train/cat/0.png", b"PIXELS")
        with pytest.raises(ValueError, match="1 file with other contents"):
            looked(tmp_path / "run", parts(photos))


def test_files_that_cannot_be_read_are_the_same_as_before(photos: Path, tmp_path: Path) -> None:
    """Whether a run may skip them is decided elsewhere."""
    (photos / "train/cat/9.png").symlink_to("nowhere")
    looked(tmp_path / "run", parts(photos), resumed=False, contents=True)
    assert looked(tmp_path / "run", parts(photos), contents=True) == []


def test_data_that_moved(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked(tmp_path / "run", parts(photos), resumed=False)
    shutil.copytree(photos, tmp_path / "another" / "node")  # which keeps times
    assert looked(tmp_path / "run", parts(tmp_path / "another" / "node")) == []
    monkeypatch.chdir(tmp_path / "another")
    assert looked(tmp_path / "run", parts(Path("node"))) == []
    (tmp_path / "another/node/val/cat/0.png").unlink()
    with pytest.raises(ValueError, match=r"1 file missing \(node/val/cat/0\.png\)"):
        looked(tmp_path / "run", parts(Path("node")))


@pytest.mark.skipif(sys.platform != "linux", reason="file systems elsewhere refuse such names")
def test_names_that_are_not_utf8(photos: Path, tmp_path: Path) -> None:
    name = os.fsencode(photos / "train/cat") + b"/caf\xe9\n.png"
    with open(name, "wb") as file:
        file.write(b"pixels")
    looked(tmp_path / "run", parts(photos), resumed=False, contents=True)
    assert looked(tmp_path / "run", parts(photos), contents=True) == []
    with open(name, "wb") as file:
        file.write(b"other pixels")
    with pytest.raises(ValueError, match=r"1 file of another size \(.*train/cat/caf\\udce9\\n\.png\)"):
        looked(tmp_path / "run", parts(photos))
    os.unlink(name)
    with pytest.raises(ValueError, match=r"1 file missing \(.*train/cat/caf\\udce9\\n\.png\)"):
        looked(tmp_path / "run", parts(photos))


def test_the_same_files_in_another_order(photos: Path, tmp_path: Path) -> None:
    looked(tmp_path / "run", parts(photos), resumed=False)
    with pytest.raises(ValueError, match="has changed: the same files in another order; restore"):
        looked(tmp_path / "run", parts(photos)[::-1])


def test_data_without_files(photos: Path, tmp_path: Path) -> None:
    worlds = [World(split, 8, 32) for split in ("train", "val")]
    looked(tmp_path / "run", parts(photos), resumed=False)
    with pytest.raises(ValueError, match=r"has changed: 12 files missing \(first train/cat/0\.png\)"):
        looked(tmp_path / "run", worlds)
    assert looked(tmp_path / "run", worlds, resumed=False) == []  # the start before had failed
    assert not (tmp_path / "run" / changes.RECORD).exists()
    assert looked(tmp_path / "run", worlds) == []


def test_a_run_without_a_record(photos: Path, tmp_path: Path) -> None:
    (line,) = looked(tmp_path / "run", parts(photos))
    assert line == f"{tmp_path}/run has no record of its data, so no files were compared; they are recorded from now on"
    assert looked(tmp_path / "run", parts(photos)) == []


def test_a_damaged_record(photos: Path, tmp_path: Path) -> None:
    looked(tmp_path / "run", parts(photos), resumed=False)
    record = tmp_path / "run" / changes.RECORD
    whole = record.read_bytes()
    for damaged in (whole[:-9], whole[:90] + bytes([whole[90] ^ 1]) + whole[91:]):
        record.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"data\.npz is damaged: checksum mismatch"):
            looked(tmp_path / "run", parts(photos))
    (tmp_path / "run" / CHECKSUMS).unlink()
    for damaged in (whole[:-9], b"", b"no arrays", whole.replace(b"times", b"Times")):
        record.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"data\.npz is damaged: .*remove it to go on"):
            looked(tmp_path / "run", parts(photos))


def test_a_long_look_says_how_far_it_is(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "PATIENCE", -1.0)
    lines = looked(tmp_path / "run", parts(photos), resumed=False)
    assert lines[3] == "looked at 4 of 12 files of the data"


@pytest.mark.parametrize("slow", [True, False])
def test_slow_files_are_looked_at_by_several_threads(
    tmp_path: Path, slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set()

    class Many:
        def files(self) -> list[str]:
            return [f"photos/{number}" for number in range(5000)]

    def look(path: str) -> tuple[int, int]:
        threads.add(get_ident())
        return int(path.removeprefix("photos/")), 7

    monkeypatch.setattr(changes, "size_and_time", look)
    monkeypatch.setattr(changes, "QUICK", -1.0 if slow else 1.0)
    looked(tmp_path / "run", [Many()], resumed=False)
    with np.load(tmp_path / "run" / changes.RECORD) as record:
        assert record["sizes"].tolist() == list(range(5000))
    assert (len(threads) > 1) == slow


def test_quick_files_need_no_threads(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = parts(photos)
    monkeypatch.setattr(waiting, "ThreadPool", None)
    monkeypatch.setattr(changes, "QUICK", 1.0)
    looked(tmp_path / "run", sources, resumed=False)
    assert looked(tmp_path / "run", sources) == []


def test_the_record_is_small_and_written_alike(tmp_path: Path) -> None:
    class Many:
        def files(self) -> list[str]:
            return [f"/data/train/n{n // 100:08d}/n{n // 100:08d}_{n}.JPEG" for n in range(10_000)]

    for name in ("one", "other"):
        looked(tmp_path / name, [Many()], resumed=False)
    records = [(tmp_path / name / changes.RECORD).read_bytes() for name in ("one", "other")]
    assert records[0] == records[1]
    assert len(records[0]) < 10 * 10_000


def test_shards(tmp_path: Path) -> None:
    for name in ("train-0", "train-1", "val-0"):
        pack(tmp_path / f"{name}.tar", [(f"{name}/a.png", b"1"), (f"{name}/a.cls", b"1")])
    data = Data(source="wds", root=str(tmp_path), train_split="train-{0..1}.tar", val_split="val-0.tar")
    sources = [open_source(data, split) for split in ("train", "val")]
    looked(tmp_path / "run", sources, resumed=False, contents=True)
    assert looked(tmp_path / "run", sources) == []
    before = (tmp_path / "train-1.tar").read_bytes()
    replace(tmp_path / "train-1.tar", before.replace(b"train-1/a", b"train-1/b"))
    with pytest.raises(ValueError, match=r"1 file with other contents \(.*train-1\.tar\)"):
        looked(tmp_path / "run", sources)
    replace(tmp_path / "train-1.tar", before + bytes(512))
    with pytest.raises(ValueError, match=r"1 file of another size \(.*train-1\.tar\)"):
        looked(tmp_path / "run", sources)
    far = Stream(8, ["0", "1"], lambda epoch: iter([]), ["https://far/0.tar", "pipe:cat 1.tar", "here/2.tar.gz"])
    assert far.files() == ["here/2.tar.gz"]
