"""Released trees become stores and stores become trees, bit for bit; other trees are refused by name."""

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labelflow.engine.lock import Busy, one_writer
from labelflow.labels import Draft, Manifest, Store, export_tree, import_tree
from labels.small_store import flip

CLASSES = [f"n{n:08d}" for n in range(40)]


def score_map(shape: tuple[int, ...] = (2, 5, 4, 3), classes: int = 40, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    tensor = torch.randn(shape, generator=generator) * 9
    tensor[1] = torch.randint(0, classes, shape[1:], generator=generator)
    return tensor.half()


def plant(tree: Path, *names: str, legacy: bool = False) -> dict[str, torch.Tensor]:
    maps = {name: score_map(seed=seed) for seed, name in enumerate(names)}
    for name, tensor in maps.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        with open(tree / f"{name}.pt", "wb") as file:  # torch itself refuses some names
            torch.save(tensor, file, _use_new_zipfile_serialization=not legacy)
    return maps


def any_store(folder: Path, count: int, k: int, grid: tuple[int, int], keys: list[str]) -> Store:
    manifest = Manifest("", "", 0, "whole", "logits", grid, k, tuple(map(str, range(count))), len(keys), shard=1024)
    chance = np.random.default_rng(0)
    shape = (len(keys), k, *grid)
    draft = Draft(folder, manifest, keys)
    draft.write(0, chance.normal(0, 9, shape), chance.integers(0, count, shape))
    return draft.finish()


@pytest.mark.parametrize("legacy", [False, True])
def test_a_tree_becomes_a_store(legacy: bool, tmp_path: Path) -> None:
    maps = plant(tmp_path / "tree", "n01/n01_7", "n02/n02_1", "n01/n01_10", legacy=legacy)
    (tmp_path / "tree" / "readme.md").write_text("not a map")
    parts: list[float] = []
    store = import_tree(tmp_path / "tree", tmp_path / "store", CLASSES, annotator="NFNet-F6", advance=parts.append)
    assert store.keys() == ["n01/n01_10", "n01/n01_7", "n02/n02_1"]
    assert store.manifest == Manifest("NFNet-F6", "", 0, "whole", "logits", (4, 3), 5, tuple(CLASSES), 3)
    assert parts == [1]
    for key, tensor in maps.items():
        assert store[key].scores.tobytes() == tensor[0].numpy().tobytes()
        np.testing.assert_array_equal(store[key].classes, tensor[1].numpy())


def test_an_import_goes_on(tmp_path: Path) -> None:
    plant(tmp_path / "tree", "a/1", "a/2")
    whole = import_tree(tmp_path / "tree", tmp_path / "whole", CLASSES)
    Draft(tmp_path / "again", whole.manifest, whole.keys())
    assert import_tree(tmp_path / "tree", tmp_path / "again", CLASSES, resume=True).checksum == whole.checksum


@given(
    count=st.sampled_from([2, 256, 257, 2048]),
    k=st.integers(1, 2),
    grid=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    names=st.lists(st.text("äb. 猫", min_size=1, max_size=5).filter(lambda name: name not in (".", "..")), unique=True),
)
def test_there_and_back(count: int, k: int, grid: tuple[int, int], names: list[str]) -> None:
    keys = sorted(f"n01/{name}" for name in [*names, "one"])
    with tempfile.TemporaryDirectory() as folder:
        store = any_store(Path(folder, "store"), count, k, grid, keys)
        assert export_tree(store, Path(folder, "tree")) == len(keys)
        again = import_tree(Path(folder, "tree"), Path(folder, "again"), store.manifest.classes)
        assert again.keys() == keys
        assert again.checksum == store.checksum


def test_an_export_goes_on(tmp_path: Path) -> None:
    store = any_store(tmp_path / "store", 3, 2, (2, 2), ["a/1", "a/2", "b/1"])
    export_tree(store, tmp_path / "tree")
    expected = {path: path.read_bytes() for path in (tmp_path / "tree").rglob("*.pt")}
    with pytest.raises(ValueError, match="is not empty; use resume"):
        export_tree(store, tmp_path / "tree")
    (tmp_path / "tree/a/2.pt").unlink()
    (tmp_path / "tree/a/.2.pt.draft").write_text("half")  # a kill left it
    assert export_tree(store, tmp_path / "tree", resume=True) == 1
    assert {path: path.read_bytes() for path in (tmp_path / "tree").rglob("*") if path.is_file()} == expected


@pytest.mark.parametrize(
    "key", ["../a", "../../a", "a/../../b", "a/..", "/etc/a", "a//b", "./a", "a/", "", "a\0b", "\ud800"]
)
def test_no_key_leads_out_of_the_tree(key: str, tmp_path: Path) -> None:
    store = any_store(tmp_path / "store", 3, 2, (2, 2), ["a/1", key])
    with pytest.raises(ValueError, match="is not a path below"):
        export_tree(store, tmp_path / "tree")
    assert not (tmp_path / "tree").exists()


def test_nothing_of_a_damaged_store_is_exported(tmp_path: Path) -> None:
    store = any_store(tmp_path / "store", 3, 2, (2, 2), ["a/1", "a/2"])
    flip(tmp_path / "store/shards/00000.npy")
    with pytest.raises(ValueError, match=r"00000\.npy is damaged: checksum mismatch"):
        export_tree(store, tmp_path / "tree")
    assert not (tmp_path / "tree").exists()


def test_one_writer(tmp_path: Path) -> None:
    plant(tmp_path / "tree", "a/1")
    store = import_tree(tmp_path / "tree", tmp_path / "store", CLASSES)
    acts = {
        "store": lambda: import_tree(tmp_path / "tree", tmp_path / "store", CLASSES, resume=True),
        "exported": lambda: export_tree(store, tmp_path / "exported"),
    }
    for name, act in acts.items():
        with one_writer(tmp_path / name), pytest.raises(Busy, match=f"{name} is in use by process {os.getpid()}"):
            act()
        act()
        assert not (tmp_path / name / ".lock").exists()


def test_an_import_mends_what_is_damaged(tmp_path: Path) -> None:
    plant(tmp_path / "tree", "a/1", "a/2")
    store = import_tree(tmp_path / "tree", tmp_path / "store", CLASSES)
    flip(tmp_path / "store/shards/00000.npy")
    told: list[str] = []
    again = import_tree(tmp_path / "tree", tmp_path / "store", CLASSES, resume=True, say=told.append)
    again.check()
    assert again.checksum == store.checksum
    assert told == [f"1 damaged file of {tmp_path / 'store'} made again: shards/00000.npy"]


def test_odd_names_of_files(tmp_path: Path) -> None:
    names = sorted(["a b/ü", "..a/b..", "-/.x", os.fsdecode(b"a/\xff"), "a/\r", "a/\\", "a/.pt"])
    plant(tmp_path / "tree", *names)
    (tmp_path / "tree/a/.pt").write_bytes(b"")  # of no name
    store = import_tree(tmp_path / "tree", tmp_path / "store", CLASSES)
    assert store.keys() == names
    assert export_tree(store, tmp_path / "again") == len(names)
    assert import_tree(tmp_path / "again", tmp_path / "other", CLASSES).checksum == store.checksum
    plant(tmp_path / "tree", "a/line\nbreak")
    with pytest.raises(ValueError, match=r"a key must not contain a line break: 'a/line\\nbreak'"):
        import_tree(tmp_path / "tree", tmp_path / "new", CLASSES)
    assert not (tmp_path / "new").exists()


def test_float16_holds_so_many_classes(tmp_path: Path) -> None:
    store = any_store(tmp_path / "store", 2049, 2, (2, 2), ["a"])
    with pytest.raises(ValueError, match=r"has 2049 classes: .* exact up to 2048 only"):
        export_tree(store, tmp_path / "tree")
    plant(tmp_path / "tree", "a/1")
    with pytest.raises(ValueError, match=r"1\.pt stores classes in float16"):
        import_tree(tmp_path / "tree", tmp_path / "new", store.manifest.classes)


def changed(place: tuple[int, ...], value: float) -> torch.Tensor:
    tensor = score_map()
    tensor[place] = value
    return tensor


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"scores": score_map()}, "is not a label map: it holds dict, not a float tensor"),
        (score_map()[0], r"it holds torch.float16 \[5, 4, 3\]"),
        (score_map().int(), r"it holds torch.int32"),
        (score_map((2, 5, 3, 4)), r"has k, rows, columns \(5, 3, 4\), but .*1\.pt has \(5, 4, 3\)"),
        (changed((0, 0, 0, 0), float("nan")), "scores that are not finite"),
        (changed((0, 0, 0, 0), float("inf")), "scores that are not finite"),
        (changed((1, 0, 0, 0), float("nan")), "class ids that are not integers from 0 to 39"),
        (changed((1, 0, 0, 0), 40), "class ids"),
        (changed((1, 0, 0, 0), -1), "class ids"),
        (changed((1, 0, 0, 0), 0.5), "class ids"),
        (replace, "is not a label map: "),  # code is not executed
    ],
)
def test_other_files_are_refused_by_name(value: Any, message: str, tmp_path: Path) -> None:
    plant(tmp_path / "tree", "a/1")
    torch.save(value, tmp_path / "tree/a/2.pt")
    with pytest.raises(ValueError, match=rf"a/2\.pt .*{message}"):
        import_tree(tmp_path / "tree", tmp_path / "store", CLASSES)


def test_damaged_files_and_empty_trees_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no folder"):
        import_tree(tmp_path / "tree", tmp_path / "store", CLASSES)
    (tmp_path / "tree").mkdir()
    with pytest.raises(ValueError, match="has no label maps; it should hold files CLASS"):
        import_tree(tmp_path / "tree", tmp_path / "store", CLASSES)
    for damaged in (b"", b"PK\x03\x04", b"\x80\x02half", b"text"):
        (tmp_path / "tree" / "1.pt").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"1\.pt is not a label map"):
            import_tree(tmp_path / "tree", tmp_path / "store", CLASSES)
