"""A store gives back what was written, byte for byte the same however it was written, or says what is wrong."""

import hashlib
import json
import os
import pickle
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelflow.labels import Draft, Manifest, Store, keys
from labelflow.labels import store as store_file

# Children only fork, write with numpy, and end.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")

SMALL = Manifest(
    annotator="nfnet",
    weights="",
    image_size=576,
    seen="center(0.956)",
    scores="rest",
    grid=(3, 2),
    k=2,
    classes=("cat", "dog", "owl"),
    samples=7,
    shard=2,
)
KEYS = [f"cat/{n}" for n in range(7)]


def maps(manifest: Manifest) -> tuple[np.ndarray, np.ndarray]:
    chance = np.random.default_rng(0)
    shape = (manifest.samples, manifest.k, *manifest.grid)
    return chance.normal(0, 9, shape).astype(np.float16), chance.integers(0, len(manifest.classes), shape)


def fill(draft: Draft, rank: int = 0, processes: int = 1) -> None:
    scores, classes = maps(draft.manifest)
    for shard in [shard for shard in draft.missing() if shard % processes == rank]:
        places = draft.places(shard)
        draft.write(shard, scores[places], classes[places])


def make(folder: Path, manifest: Manifest = SMALL, names: list[str] = KEYS, resume: bool = False) -> Store:
    draft = Draft(folder, manifest, names, resume)
    fill(draft)
    return draft.finish()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def child(act: Callable[[], Any]) -> int:
    """A process that does this; its number."""
    number = os.fork()
    if not number:
        code = 1
        try:
            act()
            code = 0
        finally:
            os._exit(code)
    return number


def status(number: int) -> int:
    return os.waitpid(number, 0)[1]


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


@pytest.mark.parametrize(("samples", "shard"), [(1, 256), (65_536, 256), (65_537, 512), (1_281_167, 5120)])
def test_files_are_few_enough_to_be_kept_open(samples: int, shard: int) -> None:
    manifest = replace(SMALL, samples=samples, shard=0)
    assert (manifest.shard, manifest.shards <= 256) == (shard, True)
    with pytest.raises(ValueError, match="too many"):
        replace(SMALL, samples=samples + 512, shard=1)


# ---- kills and processes


def mortal(deaths: int) -> None:
    """Die at the n-th step: before or after something is written, renamed, made or removed."""
    left = [deaths]

    def steps(function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            for act in (lambda: None, lambda: function(*args, **kwargs)):
                result = act()
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return result

        return step

    for owner, names in {
        os: ("replace", "fsync"),
        Path: ("unlink", "mkdir", "write_text", "write_bytes"),
        np: ("save",),
    }.items():
        for name in names:
            setattr(owner, name, steps(getattr(owner, name)))


def test_a_kill_at_any_step_leaves_no_trace(tmp_path: Path) -> None:
    make(tmp_path / "alone")
    expected = contents(tmp_path / "alone")

    def killed(deaths: int) -> None:
        mortal(deaths)
        make(tmp_path / f"killed{deaths}", resume=True)

    for deaths in range(1, 1000):
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
    folder = tmp_path / "together"
    processes = 3

    def begin_and_fill(rank: int) -> None:
        fill(Draft(folder, SMALL, KEYS, resume=True), rank, processes)

    children = [child(partial(begin_and_fill, rank)) for rank in range(processes)]
    assert [status(number) for number in children] == [0] * processes
    Draft(folder, SMALL, KEYS, resume=True).finish()
    assert contents(folder) == contents(tmp_path / "alone")


def test_processes_may_begin_at_once(tmp_path: Path) -> None:
    def begin() -> None:
        written = os.fsync
        os.fsync = lambda file: (time.sleep(0.1), written(file))  # the others come in between
        Draft(tmp_path, SMALL, KEYS)

    children = [child(begin) for _ in range(6)]
    assert [status(number) for number in children] == [0] * 6
    assert contents(tmp_path).keys() == {"draft.json", "samples.txt"}


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


# ---- refusals


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


def test_another_version_is_refused(tmp_path: Path) -> None:
    make(tmp_path)
    value = json.loads((tmp_path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps({**value, "version": 2}))
    with pytest.raises(ValueError, match="another version of labelflow: its format is 2, this one reads 1"):
        Store(tmp_path)


@pytest.mark.parametrize("name", ["samples.txt", "index.npy", "shards/00001.npy"])
def test_a_truncated_store_is_refused(name: str, tmp_path: Path) -> None:
    make(tmp_path)
    size = (tmp_path / name).stat().st_size
    os.truncate(tmp_path / name, size - 1)
    with pytest.raises(ValueError, match=f"is truncated: {name} has {size - 1} bytes, not {size}"):
        Store(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(ValueError, match=f"is truncated: {name} is missing"):
        Store(tmp_path)


def test_a_shard_of_another_shape_is_refused(tmp_path: Path) -> None:
    store = make(tmp_path)
    path = tmp_path / "shards/00000.npy"
    size = path.stat().st_size
    other = np.zeros((2, 4), SMALL.record)
    with open(path, "wb") as file:
        np.save(file, other)
    os.truncate(path, size)
    with pytest.raises(ValueError, match="damaged"):
        store.at(0)
    with open(path, "wb") as file:
        np.save(file, np.zeros(2, replace(SMALL, grid=(2, 3)).record))
    with pytest.raises(ValueError, match=r"00000\.npy holds \(2,\) of"):
        Store(tmp_path).at(0)


def test_a_damaged_header_is_refused(tmp_path: Path) -> None:
    make(tmp_path)
    data = (tmp_path / "shards/00000.npy").read_bytes()
    for place in range(data.index(b"}")):
        (tmp_path / "shards/00000.npy").write_bytes(data[:place] + b"(" + data[place + 1 :])
        if data[place] != ord("("):
            with pytest.raises(ValueError, match=r"00000\.npy (is damaged|holds)"):
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
            assert Store(tmp_path).verify(parts.append) == [f"{name} is damaged: checksum mismatch"]
            assert parts == sorted(parts)
            assert parts[-1] == 1
            data[place] ^= 1
        (tmp_path / name).write_bytes(data)
    assert Store(tmp_path).verify() == []


@pytest.mark.parametrize(("field", "value"), [("scores", np.nan), ("classes", 3)])
def test_verify_finds_what_no_label_can_be(field: str, value: float, tmp_path: Path) -> None:
    make(tmp_path)
    path = tmp_path / "shards/00000.npy"
    records = np.load(path)
    records[field][0, 0, 0, 0] = value
    np.save(path, records)
    said = json.loads((tmp_path / "manifest.json").read_text())
    said["files"]["shards/00000.npy"]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (tmp_path / "manifest.json").write_text(json.dumps(said))
    assert [problem[:17] for problem in Store(tmp_path).verify()] == ["shards/00000.npy:"]


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
    for resume in (False, True):
        with pytest.raises(ValueError, match="is complete already"):
            Draft(tmp_path / "draft", SMALL, KEYS, resume)


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
    with pytest.raises(ValueError, match=r"00001\.npy is damaged: .*; remove it and resume"):
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid": (0, 2)}, "grid"),
        ({"k": 0}, "k must be between 1 and the number of classes \\(3\\)"),
        ({"k": 4}, "k must be between"),
        ({"samples": 0}, "samples"),
        ({"shard": -1}, "shard ≥ 0, not 7 and -1"),
        ({"image_size": -1}, "image_size"),
        ({"scores": "softmax"}, "scores must be 'rest' or 'logits'"),
        ({"seen": ""}, "seen must be"),
        ({"seen": "center(1.5)"}, "seen must be"),
        ({"seen": "center(nan)"}, "seen must be"),
        ({"seen": "center(x)"}, "seen must be"),
    ],
)
def test_manifests_are_checked(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **change)


def test_strays_of_a_kill_go(tmp_path: Path) -> None:
    draft = Draft(tmp_path, SMALL, KEYS)
    fill(draft)
    for stray in (".manifest.json.draft", "shards/.00001.npy.draft"):
        (tmp_path / stray).write_text("half")
    draft.finish()
    assert not [name for name in contents(tmp_path) if Path(name).match(store_file.STRAYS)]
