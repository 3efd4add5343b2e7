"""A store gives back what was written, or says what is wrong."""

import json
import os
import pickle
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelflow.files import checksum
from labelflow.labels import Draft, Manifest, Store
from labelflow.labels import store as store_file
from labels.small_store import KEYS, SMALL, child, contents, fill, flip, make, maps, status

# Children only fork, read with numpy, and end.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


@st.composite
def stores(draw: st.DrawFn) -> tuple[Manifest, list[str]]:
    text = st.text(st.characters(exclude_characters="\n", exclude_categories=[]), max_size=12)  # lone surrogates too
    names = draw(st.lists(text, min_size=1, max_size=9, unique=True))
    count = draw(st.sampled_from([2, 3, 255, 256, 257, 65536, 65537, 70000]))
    manifest = Manifest(
        annotator=draw(st.text(max_size=5)),
        weights=draw(st.text(max_size=5)),
        image_size=draw(st.integers(0, 600)),
        seen=draw(st.sampled_from(["whole", "center(1)", "center(0.875)"])),
        scores=draw(st.sampled_from(["rest", "logits"])),
        grid=(draw(st.integers(1, 5)), draw(st.integers(1, 5))),
        k=draw(st.integers(1, min(count, 5))),
        classes=(draw(text), *map(str, range(count - 1))),
        samples=len(names),
        shard=draw(st.integers(1, 10)),
    )
    return manifest, names


@settings(max_examples=25)
@given(stores())
def test_gives_back_what_was_written(case: tuple[Manifest, list[str]]) -> None:
    manifest, names = case
    scores, classes = maps(manifest)
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), manifest, names)
        store = Store(folder)
        assert (store.manifest, store.keys(), len(store)) == (manifest, names, len(names))
        assert store.verify() == []
        for place, key in enumerate(names):
            found = store[key]
            assert key in store
            assert found.scores.dtype == np.float16
            assert found.scores.tobytes() == scores[place].tobytes() == store.at(place).scores.tobytes()
            np.testing.assert_array_equal(found.classes, classes[place])
        assert not any(name + "!" in store for name in names if name + "!" not in names)
        shard = np.load(Path(folder) / "shards/00000.npy", mmap_mode="r", allow_pickle=False)
        np.testing.assert_array_equal(shard["classes"], classes[: manifest.shard])


def test_an_image_costs_little(tmp_path: Path) -> None:
    wnids = tuple(f"n{n:08d}" for n in range(1000))
    manifest = replace(SMALL, grid=(18, 18), k=5, classes=wnids, samples=1500, shard=1024)
    make(tmp_path, manifest, [f"n01440764/n01440764_{n}" for n in range(1500)])
    assert sum(map(len, contents(tmp_path).values())) / 1500 <= 6600


def test_pickles_are_small_and_forks_are_safe(tmp_path: Path) -> None:
    store = make(tmp_path)
    expected = [store.at(place).scores.tobytes() for place in range(7)]
    assert len(pickle.dumps(store)) < 500
    again = pickle.loads(pickle.dumps(store))
    assert [again[key].scores.tobytes() for key in KEYS] == expected

    def read() -> None:
        assert [store[key].scores.tobytes() for key in KEYS] == expected

    children = [child(read) for _ in range(3)]
    read()
    assert [status(number) for number in children] == [0] * 3


def test_what_is_not_a_whole_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no folder"):
        Store(tmp_path / "nowhere")
    (tmp_path / "other").mkdir()
    with pytest.raises(ValueError, match=r"is not a store of labels: it has no manifest\.json"):
        Store(tmp_path / "other")
    (tmp_path / "other" / "manifest.json").write_text("{}")
    with pytest.raises(ValueError, match="has another format"):
        Store(tmp_path / "other")
    draft = Draft(tmp_path / "draft", SMALL, KEYS)
    fill(draft, rank=1, processes=2)
    with pytest.raises(ValueError, match=r"unfinished \(2 of 4 shards\); run the same annotate .* --resume"):
        Store(tmp_path / "draft")


@pytest.mark.parametrize("name", ["samples.txt", "index.npy", "shards/00001.npy"])
def test_a_truncated_store_is_refused(name: str, tmp_path: Path) -> None:
    make(tmp_path)
    size = (tmp_path / name).stat().st_size
    os.truncate(tmp_path / name, size - 1)
    with pytest.raises(ValueError, match=f"{name} is damaged: it has {size - 1} bytes, not {size}; .* --resume"):
        Store(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(ValueError, match=f"{name} is missing; to make it again"):
        Store(tmp_path)


def use(store: Store) -> None:
    """All of it, as training does."""
    for key in KEYS:
        assert store[key].scores.shape == (2, 3, 2)


def seal(folder: Path, *names: str) -> None:
    """List these files as they are now."""
    said = json.loads((folder / "manifest.json").read_text())
    for name in names:
        said["files"][name] = checksum(folder / name)._asdict()
    said.pop("sha256", None)
    (folder / "manifest.json").write_text(json.dumps(said))


@pytest.mark.parametrize("name", ["samples.txt", "index.npy", "shards/00001.npy"])
@pytest.mark.parametrize("act", [use, Store.check, Store.keys, lambda store: store.at(2)])
def test_no_file_is_used_unchecked(name: str, act: Callable[[Store], object], tmp_path: Path) -> None:
    expected = [one.scores.tobytes() for one in map(make(tmp_path).at, range(7))]
    flip(tmp_path / name)
    needed = {Store.keys: ["samples.txt"], use: ["index.npy", "shards/00001.npy"]}.get(act, ["shards/00001.npy"])
    store = Store(tmp_path)
    if name in needed or act is Store.check:
        with pytest.raises(ValueError, match=rf"{name} is damaged: checksum mismatch; to make it again, .* --resume"):
            act(store)
    else:
        act(store)
    if name.startswith("shards"):  # the others can be used
        assert [store.at(place).scores.tobytes() for place in (0, 1, 4, 5, 6)] == [*expected[:2], *expected[4:]]


def test_swapped_shards_are_noticed(tmp_path: Path) -> None:
    make(tmp_path)
    one, other = (tmp_path / f"shards/0000{n}.npy" for n in (0, 1))
    one.rename(tmp_path / "kept"), other.rename(one), (tmp_path / "kept").rename(other)
    for act in (use, Store.check):
        with pytest.raises(ValueError, match=r"00000\.npy is damaged: checksum mismatch"):
            act(Store(tmp_path))


def test_a_file_is_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make(tmp_path)
    read: list[str] = []
    monkeypatch.setattr(store_file, "file_problem", lambda folder, manifest, name, wanted: read.append(name) or "")
    store.check()
    assert sorted(read) == sorted(store.manifest.files)
    store.check()
    use(store)

    def forked() -> None:
        use(store)
        assert len(read) == 6

    assert (status(child(forked)), len(read)) == (0, 6)
    use(pickle.loads(pickle.dumps(store)))  # as data workers get it where they are not forked
    assert len(read) == 6


@pytest.mark.parametrize("name", ["index.npy", "shards/00000.npy"])
def test_arrays_of_another_shape_are_refused(name: str, tmp_path: Path) -> None:
    make(tmp_path)
    with open(tmp_path / name, "wb") as file:
        np.save(file, np.zeros(2, replace(SMALL, grid=(2, 3)).record))
    seal(tmp_path, name)
    with pytest.raises(ValueError, match=rf"{name} is damaged: it holds \(2,\) of"):
        use(Store(tmp_path))


@pytest.mark.parametrize(("lines", "message"), [(b"cat/\xff\n" * 7, "can't decode"), (b"cat\n" * 6, "6 keys, not 7")])
def test_other_keys_are_refused(lines: bytes, message: str, tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "samples.txt").write_bytes(lines)
    seal(tmp_path, "samples.txt")
    with pytest.raises(ValueError, match=rf"samples\.txt is damaged: .*{message}"):
        Store(tmp_path).keys()


def test_a_damaged_header_is_refused(tmp_path: Path) -> None:
    make(tmp_path)
    name = "shards/00000.npy"
    data = (tmp_path / name).read_bytes()
    for place in range(data.index(b"}")):
        (tmp_path / name).write_bytes(data[:place] + b"(" + data[place + 1 :])
        if data[place] != ord("("):
            seal(tmp_path, name)
            with pytest.raises(ValueError, match=r"00000\.npy is damaged"):
                Store(tmp_path).at(0)


def test_other_files_are_ignored(tmp_path: Path) -> None:
    store = make(tmp_path)
    (tmp_path / "shards" / "notes.txt").write_text("mine")
    assert Store(tmp_path).checksum == store.checksum


def test_verify_finds_a_flipped_byte(tmp_path: Path) -> None:
    make(tmp_path)
    for name in ("samples.txt", "index.npy", "shards/00002.npy"):
        data = bytearray((tmp_path / name).read_bytes())
        for place in (0, len(data) // 2, len(data) - 1):
            data[place] ^= 1
            (tmp_path / name).write_bytes(data)
            parts: list[float] = []
            (problem,) = Store(tmp_path).verify(parts.append)
            assert problem.startswith(f"{tmp_path / name} is damaged: checksum mismatch; to make it again, ")
            assert parts == sorted(parts)
            assert parts[-1] == 1
            data[place] ^= 1
        (tmp_path / name).write_bytes(data)
    assert Store(tmp_path).verify() == []


@pytest.mark.parametrize(("field", "value"), [("scores", np.nan), ("classes", 3)])
def test_what_no_label_can_be_is_found(field: str, value: float, tmp_path: Path) -> None:
    make(tmp_path)
    path = tmp_path / "shards/00000.npy"
    records = np.load(path)
    records[field][0, 0, 0, 0] = value
    np.save(path, records)
    seal(tmp_path, "shards/00000.npy")
    (problem,) = Store(tmp_path).verify()
    assert "shards/00000.npy is damaged: " in problem
    with pytest.raises(ValueError, match=r"00000\.npy is damaged: (some scores|classes must be integers from 0 to 2)"):
        Store(tmp_path).at(0)


def test_an_unknown_key_is_named_beside_one_there_is(tmp_path: Path) -> None:
    store = make(tmp_path)
    with pytest.raises(ValueError, match=r"has no labels for 'train/cat/0\.jpg'; its keys are like 'cat/0'"):
        store["train/cat/0.jpg"]
    with pytest.raises(ValueError, match="there is no sample 7"):
        store.at(7)


def test_the_checksum_is_of_the_labels(tmp_path: Path) -> None:
    same = make(tmp_path / "0").checksum
    assert make(tmp_path / "1", replace(SMALL, annotator="other")).checksum == same
    assert make(tmp_path / "2", replace(SMALL, classes=("cat", "dog", "bat"))).checksum != same
    assert make(tmp_path / "3", names=KEYS[::-1]).checksum != same
