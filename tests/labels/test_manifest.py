"""A manifest says what a store is, and whether it is damaged itself."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labelflow.labels import Draft, Store
from labels.small_store import KEYS, SMALL, flip, make


@pytest.mark.parametrize(("samples", "shard"), [(1, 256), (65_536, 256), (65_537, 512), (1_281_167, 5120)])
def test_files_are_few_enough_to_be_kept_open(samples: int, shard: int) -> None:
    manifest = replace(SMALL, samples=samples, shard=0)
    assert (manifest.shard, manifest.shards <= 256) == (shard, True)
    with pytest.raises(ValueError, match="too many"):
        replace(SMALL, samples=samples + 512, shard=1)


def test_another_version_is_refused(tmp_path: Path) -> None:
    make(tmp_path)
    value = json.loads((tmp_path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps({**value, "version": 2, "sha256": None}))
    with pytest.raises(ValueError, match="another version of labelflow: its format is 2, this one reads 1"):
        Store(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid": (0, 2)}, "grid"),
        ({"k": 0}, "k must be between 1 and the number of classes \\(3\\)"),
        ({"k": 4}, "k must be between"),
        ({"samples": 0}, "samples"),
        ({"shard": -1}, "shard ≥ 0, not 7 and -1"),
        ({"image_size": -1}, "image_size"),
        ({"scores": "softmax"}, "scores must be 'rest', 'logits' or 'sigmoid'"),
        ({"seen": ""}, "seen must be"),
        ({"seen": "center(1.5)"}, "seen must be"),
        ({"seen": "center(nan)"}, "seen must be"),
        ({"seen": "center(x)"}, "seen must be"),
    ],
)
def test_manifests_are_checked(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **change)


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    make(tmp_path)
    path = tmp_path / "manifest.json"
    for place in range(path.stat().st_size):
        flip(path, place)
        try:
            told = str(Store(tmp_path).manifest == SMALL)  # in the word "sha256" itself, which is then not asked
        except ValueError as error:
            told = str(error)
        assert told == "True" or (str(tmp_path) in told and "\n" not in told), place
        flip(path, place)


def without(value: dict[str, Any], *path: str) -> None:
    for name in path[:-1]:
        value = value[name]
    del value[path[-1]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda value: without(value, "files", "index.npy", "bytes"), "no 'bytes'"),
        (lambda value: without(value, "files", "index.npy"), "does not list the files of its shards"),
        (lambda value: without(value, "files"), "does not list the files"),
        (lambda value: without(value, "manifest"), "no 'manifest'"),
        (lambda value: without(value, "manifest", "k"), "k"),
        (lambda value: value.update(files=[]), "has no attribute 'items'"),
        (lambda value: value["files"].update({"index.npy": 5}), "int"),
        (lambda value: value["files"]["index.npy"].update(bytes="240"), "should be a number and a text"),
        (lambda value: value["files"]["index.npy"].update(sha256=None), "should be a number and a text"),
        (lambda value: value.update(manifest=[]), "list"),
        (lambda value: value["manifest"].update(more=1), "more"),
        (lambda value: value["manifest"].update(samples=7.0), "7.0 should be of type int"),
        (lambda value: value["manifest"].update(samples="7"), "not supported"),
        (lambda value: value["manifest"].update(grid=3), "int"),
        (lambda value: value["manifest"].update(grid=[3, 2.5]), "2.5 should be of type int"),
        (lambda value: value["manifest"].update(grid=[10**9, 10**9]), "must fit"),
        (lambda value: value["manifest"].update(classes=["cat", 5, "owl"]), "5 should be of type str"),
        (lambda value: value["manifest"].update(classes=["cat"]), "k must be between 1 and"),
        (lambda value: value["manifest"].update(seen=None), "None"),
        (lambda value: value["manifest"].update(annotator=None), "None should be of type str"),
    ],
)
def test_damage_is_one_line_that_names_the_file(
    change: Callable[[dict[str, Any]], None], message: str, tmp_path: Path
) -> None:
    make(tmp_path)
    path = tmp_path / "manifest.json"
    value = json.loads(path.read_text())
    del value["sha256"]
    change(value)
    path.write_text(json.dumps(value))
    for act in (Store, lambda folder: Draft(folder, SMALL, KEYS, resume=True)):
        with pytest.raises(ValueError, match="make the store again") as told:
            act(tmp_path)
        assert str(told.value).startswith(f"{path} is damaged: ")
        assert message in str(told.value)


@pytest.mark.parametrize("name", ["manifest.json", "draft.json"])
@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b"5", b"null", b"{}", b"[" * 100_000, b'{"format": [1]}'])
def test_what_is_no_manifest_is_refused(data: bytes, name: str, tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "manifest.json").unlink()
    (tmp_path / name).write_bytes(data)
    for act in (Store, lambda folder: Draft(folder, SMALL, KEYS, resume=True)):
        with pytest.raises(ValueError, match=rf"{tmp_path}.*{name}|{tmp_path}/{name}") as told:
            act(tmp_path)
        assert "\n" not in str(told.value)


def test_a_store_of_an_older_version_is_read(tmp_path: Path) -> None:
    """Its manifest has no checksum of itself."""
    same = make(tmp_path).checksum
    value = json.loads((tmp_path / "manifest.json").read_text())
    del value["sha256"]
    (tmp_path / "manifest.json").write_text(json.dumps(value))
    assert Store(tmp_path).checksum == same
