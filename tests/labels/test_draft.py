"""A store is byte for byte the same however it was written: in one go, killed, by several processes, mended."""

import os
import pickle
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from labelflow.labels import Draft, Store, keys
from labelflow.labels.draft import STRAYS
from labels.small_store import KEYS, SMALL, child, contents, fill, flip, make, mortal, status

# Children only fork, write with numpy, and end.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


def test_a_kill_at_any_step_leaves_no_trace(tmp_path: Path) -> None:
    make(tmp_path / "alone")
    expected = contents(tmp_path / "alone")

    def killed(deaths: int) -> None:
        mortal(deaths)
        make(tmp_path / f"killed{deaths}", resume=True)

    for deaths in range(1, 1000, 3):
        folder = tmp_path / f"killed{deaths}"
        if status(child(partial(killed, deaths))) == 0:
            break
        if (folder / "manifest.json").exists() and not (folder / "draft.json").exists():
            assert Store(folder).verify() == []  # done, but for the last breath
        else:
            make(folder, resume=True)
        assert contents(folder) == expected, f"after {deaths} steps"
        shutil.rmtree(folder)
    assert 60 < deaths < 1000


def test_many_kills_in_a_row(tmp_path: Path) -> None:
    make(tmp_path / "alone")

    def killed(deaths: int) -> None:
        mortal(deaths)
        make(tmp_path / "killed", resume=True)

    for deaths in range(1, 20):
        status(child(partial(killed, deaths)))
    make(tmp_path / "killed", resume=True)
    assert contents(tmp_path / "killed") == contents(tmp_path / "alone")


def test_processes_write_what_one_does(tmp_path: Path) -> None:
    make(tmp_path / "alone")
    draft = Draft(tmp_path / "together", SMALL, KEYS)
    children = [child(partial(fill, pickle.loads(pickle.dumps(draft)), rank, 3)) for rank in range(3)]
    assert [status(number) for number in children] == [0] * 3
    draft.finish()
    assert contents(draft.folder) == contents(tmp_path / "alone")


# ---- mending

FILES = ["samples.txt", "index.npy", "shards/00000.npy", "shards/00003.npy"]


def swap(one: Path, other: Path) -> None:
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "flipped": lambda path: flip(path, len(path.read_bytes()) // 2),
    "truncated": lambda path: os.truncate(path, 100 if path.suffix == ".npy" else 10),
    "emptied": lambda path: os.truncate(path, 0),
    "missing": Path.unlink,
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", FILES)
def test_what_is_damaged_is_made_again(name: str, damage: str, tmp_path: Path) -> None:
    make(tmp_path)
    expected = contents(tmp_path)
    DAMAGE[damage](tmp_path / name)
    draft = Draft(tmp_path, SMALL, KEYS, resume=True)
    assert draft.missing() == ([int(name[7:12])] if name.startswith("shards") else [])
    fill(draft)
    draft.finish()
    assert draft.repairs() == f"1 damaged file of {tmp_path} made again: {name}"
    assert contents(tmp_path) == expected


def test_swapped_shards_are_both_made_again(tmp_path: Path) -> None:
    make(tmp_path)
    expected = contents(tmp_path)
    swap(tmp_path / "shards/00001.npy", tmp_path / "shards/00002.npy")
    make(tmp_path, resume=True)
    assert contents(tmp_path) == expected


def test_a_whole_store_stays_as_it_is(tmp_path: Path) -> None:
    make(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")}
    draft = Draft(tmp_path, SMALL, KEYS, resume=True)
    assert draft.missing() == []
    draft.finish()
    assert draft.repairs() == ""
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")} == before


def test_labels_that_come_out_otherwise_are_told(tmp_path: Path) -> None:
    before = make(tmp_path).checksum
    flip(tmp_path / "shards/00001.npy")
    draft = Draft(tmp_path, SMALL, KEYS, resume=True)
    draft.write(1, np.zeros((2, 2, 3, 2)), np.zeros((2, 2, 3, 2), int))
    assert draft.finish().checksum != before
    assert "1 damaged file of" in draft.repairs()
    assert "not as they were" in draft.repairs()
    assert Store(tmp_path).verify() == []


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_shard_of_an_unfinished_store_is_written_again(damage: str, tmp_path: Path) -> None:
    make(tmp_path / "whole")
    fill(Draft(tmp_path / "half", SMALL, KEYS), rank=0, processes=2)
    DAMAGE[damage](tmp_path / "half/shards/00002.npy")
    draft = Draft(tmp_path / "half", SMALL, KEYS, resume=True)
    assert draft.missing() == [1, 2, 3]
    fill(draft)
    draft.finish()
    assert contents(tmp_path / "half") == contents(tmp_path / "whole")


def test_a_kill_while_mending_leaves_no_trace(tmp_path: Path) -> None:
    make(tmp_path / "alone")
    expected = contents(tmp_path / "alone")
    folder = tmp_path / "killed"

    def killed(deaths: int) -> None:
        mortal(deaths)
        make(folder, resume=True)

    for deaths in range(1, 1000, 3):
        shutil.copytree(tmp_path / "alone", folder, dirs_exist_ok=True)
        for name in FILES:
            flip(folder / name)
        ended = status(child(partial(killed, deaths)))
        with pytest.raises(ValueError, match=r"damaged|missing") if ended and damaged(folder) else nullcontext():
            Store(folder).check()
        make(folder, resume=True)
        assert contents(folder) == expected, f"after {deaths} steps"
        if not ended:
            break
        shutil.rmtree(folder)
    assert 30 < deaths < 1000


def damaged(folder: Path) -> bool:
    return any(contents(folder).get(name) != data for name, data in contents(folder.parent / "alone").items())


# ---- refusals


def test_a_draft_is_taken_up_only_as_it_was_begun(tmp_path: Path) -> None:
    fill(Draft(tmp_path / "draft", SMALL, KEYS), rank=0, processes=2)
    with pytest.raises(ValueError, match=r"is unfinished \(2 of 4 shards\); continue with --resume"):
        Draft(tmp_path / "draft", SMALL, KEYS)
    with pytest.raises(ValueError, match="has other settings: image_size was 576, not 224, k was 2, not 1;"):
        Draft(tmp_path / "draft", replace(SMALL, k=1, image_size=224), KEYS, resume=True)
    with pytest.raises(ValueError, match="has other settings: key 6 was 'cat/6', not 'cat/9'"):
        Draft(tmp_path / "draft", SMALL, [*KEYS[:6], "cat/9"], resume=True)
    draft = Draft(tmp_path / "draft", SMALL, KEYS, resume=True)
    with pytest.raises(ValueError, match="lacks 2 of 4 shards: 1, 3"):
        draft.finish()
    fill(draft)
    draft.finish()
    draft.finish()  # once more does no harm
    with pytest.raises(ValueError, match="is complete already"):
        Draft(tmp_path / "draft", SMALL, KEYS)
    with pytest.raises(ValueError, match="is complete, but with other settings: k was 2, not 1;"):
        Draft(tmp_path / "draft", replace(SMALL, k=1), KEYS, resume=True)
    with pytest.raises(ValueError, match="is complete, but with other settings: key 6 was 'cat/6', not 'cat/9'"):
        Draft(tmp_path / "draft", SMALL, [*KEYS[:6], "cat/9"], resume=True)


@pytest.mark.parametrize("resume", [False, True])
def test_other_folders_are_left_alone(resume: bool, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(ValueError, match=r"is not empty \(thesis\.tex\)"):
        Draft(tmp_path, SMALL, KEYS, resume)
    assert contents(tmp_path) == {"thesis.tex": b"mine"}


def test_a_damaged_shard_is_not_sealed(tmp_path: Path) -> None:
    draft = Draft(tmp_path, SMALL, KEYS)
    fill(draft)
    os.truncate(tmp_path / "shards/00001.npy", 200)
    with pytest.raises(ValueError, match=r"00001\.npy is damaged: .* --resume"):
        draft.finish()
    assert not (tmp_path / "manifest.json").exists()


def test_keys_are_checked_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for names, message in {
        ("a", "b", "a"): "duplicate key 'a'",
        ("a", "b\nc"): "must not contain a line break: 'b",
        ("a", "b"): "2 keys for 7 samples",
    }.items():
        with pytest.raises(ValueError, match=message):
            Draft(tmp_path / "new", SMALL, names)
    monkeypatch.setattr(keys, "_hash", lambda key: bytes(8))
    with pytest.raises(ValueError, match="'a' and 'b' have the same hash"):
        Draft(tmp_path / "new", SMALL, ["a", "b"])
    assert not (tmp_path / "new").exists()


def test_shards_are_checked(tmp_path: Path) -> None:
    draft = Draft(tmp_path, SMALL, KEYS)
    scores, classes = np.zeros((2, 2, 3, 2)), np.zeros((2, 2, 3, 2), np.int64)
    for shard, some, ids, message in (
        (0, scores[:1], classes[:1], r"shard 0 must be \(2, 2, 3, 2\)"),
        (3, scores, classes, r"shard 3 must be \(1, 2, 3, 2\)"),
        (4, scores, classes, "there is no shard 4"),
        (0, scores + np.nan, classes, "not finite"),
        (0, scores + 70000, classes, "not finite in float16"),
        (0, scores, classes + 3, "integers from 0 to 2"),
        (0, scores, classes - 1, "integers from 0 to 2"),
        (0, scores, classes + 0.5, "integers from 0 to 2"),
    ):
        with pytest.raises(ValueError, match=message):
            draft.write(shard, some, ids)
    assert draft.missing() == [0, 1, 2, 3]


def test_strays_of_a_kill_go(tmp_path: Path) -> None:
    draft = Draft(tmp_path, SMALL, KEYS)
    fill(draft)
    for stray in (".manifest.json.draft", "shards/.00001.npy.draft"):
        (tmp_path / stray).write_text("half")
    draft.finish()
    assert not [name for name in contents(tmp_path) if Path(name).match(STRAYS)]
