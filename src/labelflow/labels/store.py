"""A store of label maps: for each image of one split the top-k scores and classes of each cell of a grid.

manifest.json       what they are, and the size and checksum of every file; written last: where it is, all is there
samples.txt         keys, one a line, in order
index.npy           two rows: sorted hashes of the keys, and their places
shards/00000.npy    an array of records (scores, classes), which numpy can map
draft.json          the manifest, in place of manifest.json while shards are still written
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from labelflow.labels.files import REPAIR_HINT, file_problem, open_array, open_shard, size_problem
from labelflow.labels.keys import Array, find, from_lines, unknown
from labelflow.labels.manifest import DRAFT, INDEX, MANIFEST, SAMPLES, Manifest, read_manifest, shard_name

__all__ = ["LabelMap", "Manifest", "Store"]

THREADS = 4  # that compute checksums


class LabelMap(NamedTuple):
    scores: Array  # (k, rows, columns) float16
    classes: Array  # (k, rows, columns) integers


class Store:
    """Labels by key: `store["n01440764/n01440764_10026"]`. Each file is compared with its checksum when it is first
    used, and shards are mapped into memory, by each process for itself; a forked one knows what was checked before."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise ValueError(f"there is no folder {self.folder}")
        if not (self.folder / MANIFEST).exists():
            raise ValueError(_why_not(self.folder))
        self.manifest, self._files = read_manifest(self.folder / MANIFEST)
        for name, file in self._files.items():
            if problem := size_problem(self.folder / name, file):
                raise ValueError(problem)
        self._intact: set[str] = set()  # names of files that were checked
        self._maps: dict[int, LabelMap] = {}  # those of the shards that were looked at: (n, k, rows, columns) each

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self.folder,), {"_intact": self._intact}

    def __len__(self) -> int:
        return self.manifest.samples

    def __contains__(self, key: str) -> bool:
        return find(self._index, key) is not None

    def facts(self) -> dict[str, Any]:
        """How the labels were made, and what they take."""
        self.at(0)  # which a manifest of another store would not fit
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
            raise ValueError(f"{self.folder} has no labels for {key!r}; its keys are like {self.keys()[0]!r}")
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
            self._checked(shard_name(shard))
            records = open_shard(self.folder, self.manifest, shard)
            self._maps[shard] = LabelMap(records["scores"], records["classes"])
        scores, classes = self._maps[shard]
        return LabelMap(scores[row].copy(), classes[row].copy())  # copies are aligned

    def keys(self) -> list[str]:
        path = self._checked(SAMPLES)
        try:
            keys = from_lines(path.read_bytes())
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is damaged: {error}; {REPAIR_HINT}") from None
        if len(keys) != len(self):
            raise ValueError(f"{path} is damaged: it has {len(keys)} keys, not {len(self)}; {REPAIR_HINT}")
        return keys

    @property
    def checksum(self) -> str:
        """The identity of the labels: of their files and of the names of the classes, not of how they came about."""
        parts = [*self.manifest.classes, *(file.sha256 for file in self._files.values())]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def check(self) -> None:
        """Compare every file with its checksum, unless that was done before. ValueError if one is damaged."""
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(self._checked, self._files))

    def verify(self, advance: Callable[[float], None] = lambda part: None) -> list[str]:
        """Read everything and list the problems. `advance` receives the fraction done, 0 to 1."""
        problems = []
        for number, (name, file) in enumerate(self._files.items()):
            problems.append(file_problem(self.folder, self.manifest, name, file))
            advance((number + 1) / len(self._files))
        return [problem for problem in problems if problem]

    def _checked(self, name: str) -> Path:
        """A file, after it was compared with its checksum."""
        if name not in self._intact:
            if problem := file_problem(self.folder, self.manifest, name, self._files[name]):
                raise ValueError(problem)
            self._intact.add(name)
        return self.folder / name

    @cached_property
    def _index(self) -> Array:
        return open_array(self._checked(INDEX), (2, len(self)), np.dtype("<u8"))


def _why_not(folder: Path) -> str:
    """Why a folder without a manifest cannot be opened."""
    if not (folder / DRAFT).exists():
        return f"{folder} is not a store of labels: it has no {MANIFEST}"
    shards = read_manifest(folder / DRAFT)[0].shards
    done = sum((folder / shard_name(shard)).exists() for shard in range(shards))
    return f"{folder} is unfinished ({done} of {shards} shards); run the same annotate command with --resume"
