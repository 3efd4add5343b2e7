"""What a check has found out is remembered, unless files change or the record is damaged."""

import os
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelflow.data.checked import FILE, UNREADABLE, CheckedFiles, file_state
from labelflow.data.index import Joined


def row(checked: CheckedFiles, path: Path, flags: int = 0) -> np.ndarray:
    status = path.stat()
    facts = (checked.key(str(path)), *file_state(status), 7, 30, 40, "JPEG", "RGB", flags)
    return np.array([facts], FILE)


def wait_for_a_tick(path: Path, before: int) -> None:
    """Until a change of a file has another time: clocks of file systems tick every few milliseconds."""
    while path.stat().st_ctime_ns == before:
        time.sleep(0.001)
        path.chmod(0o600)


def folder(place: Path, count: int) -> list[Path]:
    place.mkdir()
    paths = [place / f"{number}.jpg" for number in range(count)]
    for path in paths:
        path.write_text(path.name)
    return paths


@given(st.lists(st.sampled_from(["new", "known", "touched", "grown", "damaged", "gone", "unreadable"]), max_size=12))
def test_a_file_is_known_while_it_does_not_change(tmp_path_factory: pytest.TempPathFactory, fates: list[str]) -> None:
    root = tmp_path_factory.mktemp("checked") / "photos"
    paths = folder(root, len(fates))
    checked = CheckedFiles(root)
    for path, fate in zip(paths, fates, strict=True):
        if fate == "unreadable":
            checked.add(row(checked, path, UNREADABLE))
        elif fate != "new":
            checked.add(row(checked, path))
        if fate == "touched":
            os.utime(path, ns=(1, 1))
        elif fate in ("grown", "damaged"):
            status = path.stat()
            path.write_text("more of it" if fate == "grown" else "-" * status.st_size)
            wait_for_a_tick(path, status.st_ctime_ns)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        elif fate == "gone":
            path.unlink()
    names, again = list(map(str, paths)), CheckedFiles(root)
    new = [name for name, fate in zip(names, fates, strict=True) if fate not in ("known", "unreadable")]
    bad = [name for name, fate in zip(names, fates, strict=True) if fate == "unreadable"]
    assert again.find_new(names) == new
    assert again.find_unreadable(names) == bad
    assert again.find_unreadable(names[1:]) == [name for name in bad if name in names[1:]]  # that are asked about
    places = again.find(names)
    assert [again.files["key"][place] for place in places if place >= 0] == [
        checked.key(name) for name in names if name not in new + bad
    ]


def test_what_was_found_last_holds(tmp_path: Path) -> None:
    path, *_ = folder(tmp_path / "photos", 1)
    checked = CheckedFiles(path.parent)
    checked.add(row(checked, path, UNREADABLE))
    path.write_text("whole again")
    checked.add(row(checked, path))
    again = CheckedFiles(path.parent)
    assert (len(again.parts), len(again.files), again.find_unreadable([str(path)])) == (2, 1, [])
    again.replace(again.files)
    assert CheckedFiles(path.parent).parts == again.parts
    assert [part.name for part in again.folder.iterdir()] == [again.parts[0].name]
    assert CheckedFiles(path.parent).find_new([str(path)]) == []


@pytest.mark.usefixtures("_no_home")
def test_without_a_home_nothing_is_known(tmp_path: Path) -> None:
    path, *_ = folder(tmp_path / "photos", 1)
    checked = CheckedFiles(path.parent)
    with pytest.raises(OSError, match="no home folder; set LABELFLOW_CACHE"):
        checked.add(row(checked, path))
    assert checked.find_new([str(path)]) == [str(path)]


def test_a_folder_is_the_same_by_any_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, *_ = folder(tmp_path / "photos", 1)
    checked = CheckedFiles(path.parent)
    checked.add(row(checked, path))
    (tmp_path / "link").symlink_to(path.parent)
    assert CheckedFiles(tmp_path / "link").find_new([str(tmp_path / "link" / "0.jpg")]) == []
    monkeypatch.chdir(path.parent)
    assert CheckedFiles(".").find_new(["0.jpg", "./0.jpg"]) == []


def test_a_damaged_record_is_not_believed(tmp_path: Path) -> None:
    """Whatever byte is another: either all is as it was, or nothing is known."""
    path, *_ = folder(tmp_path / "photos", 1)
    checked = CheckedFiles(path.parent)
    checked.add(row(checked, path, UNREADABLE))
    (part,) = checked.parts
    whole = part.read_bytes()
    for place in range(0, len(whole), 7):
        part.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        again = CheckedFiles(path.parent)
        assert again.find_unreadable([str(path)]) in ([], [str(path)])
        if len(again.files):
            np.testing.assert_array_equal(again.files, row(checked, path, UNREADABLE))
        part.write_bytes(whole[:place])
        assert len(CheckedFiles(path.parent).files) == 0


def test_without_an_earlier_check_no_path_is_asked_for(tmp_path: Path) -> None:
    """Paths of a large folder are made when they are asked for; a list of them would be copied into each worker."""
    paths = Joined([["a.jpg"], ["b.jpg"]])
    assert CheckedFiles(tmp_path).find_new(paths) is paths


def test_without_a_home_nothing_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, *_ = folder(tmp_path / "photos", 1)
    monkeypatch.setattr("labelflow.data.checked.cache_folder", lambda root: None)
    checked = CheckedFiles(path.parent)
    assert checked.find_new([str(path)]) == [str(path)]
    with pytest.raises(OSError, match="no home folder; set LABELFLOW_CACHE"):
        checked.add(row(checked, path))
