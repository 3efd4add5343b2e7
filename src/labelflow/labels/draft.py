"""A store that is being written, or repaired."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from labelflow.engine.lock import LOCK
from labelflow.files import Checksum, atomic_write, checksum
from labelflow.labels.files import REPAIR_HINT, file_problem, label_problem, save_array
from labelflow.labels.keys import Array, first_difference, make_index, to_lines
from labelflow.labels.manifest import (
    DRAFT,
    INDEX,
    MANIFEST,
    SAMPLES,
    SHARDS,
    Manifest,
    differences,
    read_manifest,
    shard_name,
    write_manifest,
)
from labelflow.labels.store import Store

STRAYS = ".*.draft"  # what a kill leaves, and the checksums of shards until the manifest has them


class Draft:
    """A store that is being written, shard by shard. With `resume`, shards that are there and intact are kept, be the
    store unfinished or complete.

    One process opens it, holding the folder's lock (`engine.lock.one_writer`). Copies of it in other processes may
    write other shards; when all are written, the first one calls `finish`.
    """

    def __init__(self, folder: Path | str, manifest: Manifest, keys: Sequence[str], resume: bool = False) -> None:
        self.folder, self.manifest = Path(folder), manifest
        self.damaged: list[str] = []  # files that were, and have been removed
        self._index, self._lines = make_index(keys), to_lines(keys)
        self._identity = hashlib.sha256(json.dumps(asdict(manifest)).encode() + self._lines).hexdigest()
        if len(keys) != manifest.samples:
            raise ValueError(f"{len(keys)} keys for {manifest.samples} samples: there must be one for each")
        self._sealed: dict[str, Checksum] = {}  # the files of a store that was complete
        if (self.folder / MANIFEST).exists():
            if not resume:
                raise ValueError(f"{self.folder} is complete already; choose another folder, or remove it")
            begun, self._sealed = read_manifest(self.folder / MANIFEST)
        else:
            begun = self._begin()
        differs = differences(begun, manifest)
        if not differs and (keys_differ := self._other_keys()):
            differs = f"{keys_differ} in {self.folder / SAMPLES}"
        if differs:
            but = "is complete, but with" if self._sealed else "has"
            raise ValueError(f"{self.folder} {but} other settings: {differs}; use the same, or choose a new folder")
        (self.folder / SHARDS).mkdir(exist_ok=True)
        done = manifest.shards - len(self.missing())
        if done and not resume:
            raise ValueError(
                f"{self.folder} is unfinished ({done} of {manifest.shards} shards); "
                "continue with --resume, or choose a new folder"
            )
        self._intact = self._keep_intact()
        if not (self.folder / SAMPLES).exists():
            with atomic_write(self.folder / SAMPLES) as draft:
                draft.write_bytes(self._lines)

    def _begin(self) -> Manifest:
        """Unless it has begun; as it began."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / DRAFT).exists():
            others = [path.name for path in self.folder.iterdir() if not path.match(STRAYS) and path.name != LOCK]
            if SHARDS in others:
                raise ValueError(
                    f"{self.folder} has lost {self.folder / MANIFEST} (or {DRAFT}, if it was unfinished); restore it, "
                    "or make the store in a new folder"
                )
            if others:
                raise ValueError(f"{self.folder} is not empty ({min(others)}); choose a new folder")
            write_manifest(self.folder / DRAFT, self.manifest)
        return read_manifest(self.folder / DRAFT)[0]

    def _other_keys(self) -> str:
        """How the keys that it was begun with differ from those that are given; '' if they do not."""
        path = self.folder / SAMPLES
        given = Checksum(len(self._lines), hashlib.sha256(self._lines).hexdigest())
        if self._sealed.get(SAMPLES, given) != given:
            return (path.exists() and first_difference(path.read_bytes(), self._lines)) or "the keys differ"
        return "" if self._sealed or not path.exists() else first_difference(path.read_bytes(), self._lines)

    def _keep_intact(self) -> dict[str, Checksum]:
        """The files that are intact; others are removed."""
        listed = self._sealed or {
            name: wanted
            for name in self.manifest.files
            if name.startswith(SHARDS) and (wanted := self._read_checksum(name))
        }
        problems = {name: file_problem(self.folder, self.manifest, name, wanted) for name, wanted in listed.items()}
        unknown = [name for name in self.manifest.files if name not in listed and name.startswith(SHARDS)]
        self.damaged = [name for name, problem in problems.items() if problem]
        self.damaged += [name for name in unknown if (self.folder / name).exists()]  # without a checksum
        intact = {name: wanted for name, wanted in listed.items() if not problems[name]}
        for name in self.manifest.files:
            if name not in intact and (name.startswith(SHARDS) or self._sealed):
                (self.folder / name).unlink(missing_ok=True)
        return intact

    def missing(self) -> list[int]:
        """The shards that are still to be written."""
        every = range(self.manifest.shards)
        return [shard for shard in every if not (self.folder / shard_name(shard)).exists()]

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
        problem = label_problem(scores, classes, self.manifest)
        if problem:
            raise ValueError(f"shard {shard}: {problem}")
        records = np.empty(len(scores), self.manifest.record)
        records["scores"], records["classes"] = scores, classes
        path = self.folder / shard_name(shard)
        save_array(path, records)
        with atomic_write(self._checksum_file(shard_name(shard))) as draft:
            draft.write_text(json.dumps([self._identity, checksum(path)]), encoding="utf-8")

    def finish(self) -> Store:
        """Turn it into a store. After a kill, resume and finish again."""
        missing = self.missing()
        if missing:
            listed = ", ".join(map(str, missing[:5])) + (" and more" if len(missing) > 5 else "")
            raise ValueError(f"{self.folder} lacks {len(missing)} of {self.manifest.shards} shards: {listed}")
        if len(self._intact) < len(self.manifest.files):  # else it is whole
            save_array(self.folder / INDEX, self._index)
            self._intact = {name: self._checksum(name) for name in self.manifest.files}
            write_manifest(self.folder / MANIFEST, self.manifest, self._intact)
        for stray in [*self.folder.glob(STRAYS), *(self.folder / SHARDS).glob(STRAYS)]:
            stray.unlink()
        (self.folder / DRAFT).unlink(missing_ok=True)
        return Store(self.folder)

    def repairs(self) -> str:
        """What became of damaged files, when it is finished; '' if there were none."""
        if not self.damaged:
            return ""
        files = f"{len(self.damaged)} damaged file{'s'[: len(self.damaged) > 1]} of {self.folder} made again"
        if not self._sealed or self._intact == self._sealed:
            return f"{files}: {', '.join(self.damaged)}"
        return f"{files}, not as they were: the annotator, the data or the machine is another one; the checksum is new"

    def _checksum(self, name: str) -> Checksum:
        """Of a file that is to be sealed."""
        if not name.startswith(SHARDS):
            return checksum(self.folder / name)
        wanted = self._intact.get(name) or self._read_checksum(name)
        if not wanted:
            raise ValueError(f"{self.folder / name} has lost its checksum; {REPAIR_HINT}")
        if problem := file_problem(self.folder, self.manifest, name, wanted):
            raise ValueError(problem)
        return wanted

    def _read_checksum(self, name: str) -> Checksum | None:
        """Of a shard, as it was written; None if that is not known, or if it is another store's."""
        try:
            identity, wanted = json.loads(self._checksum_file(name).read_bytes())
            return Checksum(*wanted) if identity == self._identity else None
        except (OSError, ValueError, TypeError):
            return None

    def _checksum_file(self, name: str) -> Path:
        path = self.folder / name
        return path.with_name(f".{path.name}.checksum.draft")
