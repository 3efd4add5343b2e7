"""A store of label maps: for each image of one split the top-k scores and classes of each cell of a grid.

manifest.json       what they are, and the size and checksum of every file; written last: where it is, all is there
samples.txt         keys, one a line, in order
index.npy           two rows: sorted hashes of the keys, and their places
shards/00000.npy    an array of records (scores, classes), which numpy can map
draft.json          the manifest, in place of manifest.json while shards are still written
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from html import escape
from pathlib import Path
from tokenize import TokenError
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np

from labelflow.files import atomic_write
from labelflow.labels.keys import Array, find, first_difference, from_lines, make_index, to_lines, unknown
from labelflow.labels.manifest import Manifest, differences, read_manifest, write_manifest

__all__ = ["Draft", "LabelMap", "Manifest", "Store"]

MANIFEST, DRAFT, SAMPLES, INDEX, SHARDS = "manifest.json", "draft.json", "samples.txt", "index.npy", "shards"
STRAYS = ".*.draft"  # what a kill leaves


class LabelMap(NamedTuple):
    scores: Array  # (k, rows, columns) float16
    classes: Array  # (k, rows, columns) integers


class Store:
    """Labels by key: `store["n01440764/n01440764_10026"]`. Shards are mapped into memory when they are first looked at,
    by each process for itself."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise ValueError(f"there is no folder {self.folder}")
        if not (self.folder / MANIFEST).exists():
            raise ValueError(_why_not(self.folder))
        self.manifest, said = read_manifest(self.folder / MANIFEST)
        self._files: dict[str, dict[str, Any]] = said.get("files", {})
        if list(self._files) != _names(self.manifest):
            raise ValueError(f"{self.folder / MANIFEST} is damaged: it does not list the files of its shards")
        for name, file in self._files.items():
            size = _size(self.folder / name)
            if size != file["bytes"]:
                found = "is missing" if size is None else f"has {size} bytes, not {file['bytes']}"
                raise ValueError(f"{self.folder} is truncated: {name} {found}; copy or make the store again")
        self._maps: dict[int, LabelMap] = {}  # those of the shards that were looked at: (n, k, rows, columns) each

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self.folder,)

    def __len__(self) -> int:
        return self.manifest.samples

    def __contains__(self, key: str) -> bool:
        return find(self._index, key) is not None

    def facts(self) -> dict[str, Any]:
        """How the labels were made, and what they take."""
        size = sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())
        return {**asdict(self.manifest), "bytes_per_image": round(size / len(self)), "checksum": self.checksum}

    def summary(self) -> dict[str, str]:
        """The facts, for people."""
        facts, classes = self.facts(), self.manifest.classes
        facts["classes"] = f"{len(classes)}: {', '.join(classes[:3])}{' …' if len(classes) > 3 else ''}"
        facts["grid"] = "×".join(map(str, self.manifest.grid))
        facts["keys"] = f"like {self.keys()[0]}"
        return {name.replace("_", " "): str(value) for name, value in facts.items()}

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><th>{name}</th><td>{escape(value)}</td></tr>" for name, value in self.summary().items())
        return f"<table>{rows}</table>"

    def __getitem__(self, key: str) -> LabelMap:
        place = find(self._index, key)
        if place is None:
            with open(self.folder / SAMPLES, "rb") as file:
                example = from_lines(file.readline())[0]
            raise ValueError(f"{self.folder} has no labels for {key!r}; its keys are like {example!r}")
        return self.at(place)

    def lacks(self, keys: Sequence[str]) -> list[str]:
        """Those of the keys that have no labels here."""
        return [keys[place] for place in unknown(self._index, keys)]

    def at(self, place: int) -> LabelMap:
        """The labels of the sample at this place of `keys()`."""
        if not 0 <= place < len(self):
            raise ValueError(f"there is no sample {place} in {self.folder}: there are {len(self)}, from 0")
        shard, row = divmod(place, self.manifest.shard)
        if shard not in self._maps:
            records = np.asarray(_open_shard(self.folder, self.manifest, shard))
            self._maps[shard] = LabelMap(records["scores"], records["classes"])
        scores, classes = self._maps[shard]
        return LabelMap(scores[row].copy(), classes[row].copy())  # copies are aligned

    def keys(self) -> list[str]:
        return from_lines((self.folder / SAMPLES).read_bytes())

    @property
    def checksum(self) -> str:
        """The identity of the labels: of their files and of the names of the classes, not of how they came about."""
        parts = [*self.manifest.classes, *(file["sha256"] for file in self._files.values())]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def verify(self, advance: Callable[[float], None] = lambda part: None) -> list[str]:
        """Read everything and list the problems. `advance` receives the fraction done, 0 to 1."""
        problems = []
        for number, (name, file) in enumerate(self._files.items()):
            try:
                if _checksum(self.folder / name) != file["sha256"]:
                    problems.append(f"{name} is damaged: checksum mismatch")
                elif name.startswith(SHARDS):
                    shard = _open_shard(self.folder, self.manifest, int(Path(name).stem))
                    problem = _problem(shard["scores"], shard["classes"], self.manifest)
                    problems += [f"{name}: {problem}"] if problem else []
            except (OSError, ValueError) as error:
                problems.append(f"{name} cannot be read: {error}")
            advance((number + 1) / len(self._files))
        return problems

    @cached_property
    def _index(self) -> Array:
        return np.asarray(np.load(self.folder / INDEX, mmap_mode="r", allow_pickle=False))


class Draft:
    """A store that is being written, shard by shard, by one process or several.

    Several processes may open it at once with the same settings: all with `resume`, or all before any of them writes.
    Each writes its own shards; when all have, one calls `finish`.
    """

    def __init__(self, folder: Path | str, manifest: Manifest, keys: Sequence[str], resume: bool = False) -> None:
        self.folder, self.manifest = Path(folder), manifest
        self._index, lines = make_index(keys), to_lines(keys)
        if len(keys) != manifest.samples:
            raise ValueError(f"{len(keys)} keys for {manifest.samples} samples: there must be one for each")
        self.folder.mkdir(parents=True, exist_ok=True)
        others = [path.name for path in self.folder.iterdir() if not path.match(STRAYS)]
        if not (self.folder / DRAFT).exists():
            if (self.folder / MANIFEST).exists():
                raise ValueError(f"{self.folder} is complete already; choose another folder, or remove it")
            if others:
                raise ValueError(f"{self.folder} is not empty ({min(others)}); choose a new folder")
            with _own_draft(self.folder / DRAFT) as path:
                write_manifest(path, manifest)
        begun, _ = read_manifest(self.folder / DRAFT)
        if not (self.folder / SAMPLES).exists():
            with _own_draft(self.folder / SAMPLES) as path, atomic_write(path) as draft:
                draft.write_bytes(lines)
        differs = differences(begun, manifest) or first_difference((self.folder / SAMPLES).read_bytes(), lines)
        if differs:
            raise ValueError(f"{self.folder} has other settings: {differs}; use the same, or choose a new folder")
        (self.folder / SHARDS).mkdir(exist_ok=True)
        done = manifest.shards - len(self.missing())
        if done and not resume:
            raise ValueError(
                f"{self.folder} is unfinished ({done} of {manifest.shards} shards); "
                "continue with --resume, or choose a new folder"
            )

    def missing(self) -> list[int]:
        """The shards that are still to be written."""
        every = range(self.manifest.shards)
        return [shard for shard in every if not (self.folder / _shard_name(shard)).exists()]

    def places(self, shard: int) -> range:
        """The samples in a shard."""
        return self.manifest.places(shard)

    def write(self, shard: int, scores: Array, classes: Array) -> None:
        """All of a shard: scores and classes (n, k, rows, columns) of its samples, in order."""
        shape = (len(self.places(shard)), self.manifest.k, *self.manifest.grid)
        if scores.shape != shape or classes.shape != shape:
            raise ValueError(
                f"scores and classes of shard {shard} must be {shape}, not {scores.shape}, {classes.shape}"
            )
        with np.errstate(over="ignore"):  # becomes infinite, which is refused below
            scores = scores.astype("<f2")
        problem = _problem(scores, classes, self.manifest)
        if problem:
            raise ValueError(f"shard {shard}: {problem}")
        records = np.empty(len(scores), self.manifest.record)
        records["scores"], records["classes"] = scores, classes
        _save(self.folder / _shard_name(shard), records)

    def finish(self) -> Store:
        """Turn it into a store. After a kill, resume and finish again."""
        missing = self.missing()
        if missing:
            listed = ", ".join(map(str, missing[:5])) + (" and more" if len(missing) > 5 else "")
            raise ValueError(f"{self.folder} lacks {len(missing)} of {self.manifest.shards} shards: {listed}")
        for shard in range(self.manifest.shards):
            _open_shard(self.folder, self.manifest, shard)  # checks shape and type
        _save(self.folder / INDEX, self._index)
        paths = {name: self.folder / name for name in _names(self.manifest)}
        files = {name: {"bytes": _size(path), "sha256": _checksum(path)} for name, path in paths.items()}
        write_manifest(self.folder / MANIFEST, self.manifest, files=files)
        for stray in [*self.folder.glob(STRAYS), *(self.folder / SHARDS).glob(STRAYS)]:
            stray.unlink()
        (self.folder / DRAFT).unlink(missing_ok=True)
        return Store(self.folder)


def _why_not(folder: Path) -> str:
    """Why a folder without a manifest cannot be opened."""
    if not (folder / DRAFT).exists():
        return f"{folder} is not a store of labels: it has no {MANIFEST}"
    shards = read_manifest(folder / DRAFT)[0].shards
    done = sum((folder / _shard_name(shard)).exists() for shard in range(shards))
    return f"{folder} is unfinished ({done} of {shards} shards); run the same annotate command with --resume"


def _shard_name(shard: int) -> str:
    return f"{SHARDS}/{shard:05d}.npy"


def _names(manifest: Manifest) -> list[str]:
    """The files that a manifest lists."""
    return [SAMPLES, INDEX, *map(_shard_name, range(manifest.shards))]


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.exists() else None


def _checksum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _open_shard(folder: Path, manifest: Manifest, shard: int) -> np.memmap[Any, Any]:
    path = folder / _shard_name(shard)
    wanted = ((len(manifest.places(shard)),), manifest.record)
    try:
        records = np.lib.format.open_memmap(path, mode="r")
    except (ValueError, SyntaxError, TokenError) as error:  # of its header
        raise ValueError(f"{path} is damaged: {error}; remove it and resume, or recreate the store") from None
    if (records.shape, records.dtype) != wanted:
        raise ValueError(f"{path} holds {records.shape} of {records.dtype}, not {wanted[0]} of {wanted[1]}")
    return records


def _problem(scores: Array, classes: Array, manifest: Manifest) -> str:
    """What is wrong with label maps; '' if nothing is."""
    if not np.isfinite(scores).all():
        return "some scores are not finite in float16"
    if classes.dtype.kind not in "iu" or classes.min() < 0 or classes.max() >= len(manifest.classes):
        return f"classes must be integers from 0 to {len(manifest.classes) - 1}"
    return ""


def _save(path: Path, array: Array) -> None:
    with atomic_write(path) as draft, open(draft, "wb") as file:
        np.save(file, array, allow_pickle=False)


@contextmanager
def _own_draft(path: Path) -> Iterator[Path]:
    """A path of this process alone, which replaces `path`: others write the same content at the same time."""
    own = path.with_name(f".{path.name}.{uuid4().hex}.draft")
    yield own
    os.replace(own, path)
