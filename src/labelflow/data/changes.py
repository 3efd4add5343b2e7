"""Data that changed since a run was started: other files, sizes or times, and other contents where those are recorded.

Shapes: N files.
"""

import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable
from zipfile import BadZipFile
from zlib import error as ZlibError

import numpy as np
from numpy import ndarray

from labelflow.data.index import Joined
from labelflow.data.waiting import map_threads
from labelflow.files import atomic_write, check_file, checksum, forget_file, has_file
from labelflow.spec import printable

RECORD = "data.npz"
PATIENCE = 60  # seconds without a line
QUICK = 5e-5  # seconds a file

Values = TypeVar("Values")


@runtime_checkable
class HasFiles(Protocol):
    """A source that reads files."""

    def files(self) -> Sequence[str]:
        """All of them, in the same order each time."""
        ...


class Record(NamedTuple):
    """What is known of files."""

    names: ndarray  # uint8: below the folder that all of them share, each followed by a NUL
    sizes: ndarray  # (N,) int64; -1 where there is no such file
    times: ndarray  # (N,) int64: when they were modified, in nanoseconds
    contents: ndarray  # (N,) uint64: the first bytes of their SHA-256; 0 where it is unknown


class DataFiles:
    """The files of a run's data, now and when it was started."""

    def __init__(self, run: Path, sources: Iterable[object], resumed: bool) -> None:
        self.run, self.path, self.sources, self.resumed = run, run / RECORD, sources, resumed
        self.new: Record | None = None  # to be written

    def compare(self, contents: bool) -> Iterator[str]:
        """ValueError if they are others than when the run was started. Yields lines for people, at least one a minute,
        so that processes which wait don't give up.

        contents: read all files, too. Those with other times are read in any case if their contents are recorded.
        """
        paths = Joined([source.files() for source in self.sources if isinstance(source, HasFiles)])
        before = _read(self.path) if self.resumed and has_file(self.path) else None
        if not paths and before is None:
            return
        now = yield from _look(paths)
        if before is None:
            if self.resumed:
                yield f"{self.run} has no record of its data, so no files were compared; they are recorded from now on"
            yield from _add_contents(now, paths, np.full(len(paths), contents))
        else:
            self._check(_other_names(before, now, paths))
            self._check(_count("of another size", paths, now.sizes != before.sizes))
            touched, known = now.times != before.times, before.contents != 0
            if unsure := _count("modified", paths, touched & ~known):
                yield (
                    f"{unsure} since {self.run} was started, but sizes are the same; contents were not compared (only "
                    "runs with --hash-data record them)"
                )
            now.contents[:] = before.contents
            yield from _add_contents(now, paths, (touched & known) | contents)
            self._check(_count("with other contents", paths, known & (now.contents != before.contents)))
        if before is None or now.contents.any():  # while contents are unknown, other times are reported on each resume
            self.new = now

    def write(self) -> None:
        """Once nothing else speaks against a start."""
        if self.new is not None:
            with atomic_write(self.path, checked=True) as draft, open(draft, "wb") as file:
                np.savez_compressed(file, **self.new._asdict())
        elif not self.resumed:
            forget_file(self.path)  # of an earlier start that failed

    def _check(self, changed: str) -> None:
        if changed:
            raise ValueError(
                f"the data of {self.run} has changed: {changed}; restore it, or start a new run with another --out (a "
                f"classifier can start with these weights: --init {self.run})"
            )


def _read(path: Path) -> Record:
    check_file(path)
    try:
        with open(path, "rb") as file, np.load(file) as arrays:
            return Record(**arrays)
    except (ValueError, TypeError, EOFError, BadZipFile, ZlibError) as error:
        raise ValueError(f"{path} is damaged: {error}; restore it, or remove it to go on without comparing") from None


def _look(paths: Sequence[str]) -> Generator[str, None, Record]:
    """At everything but contents."""
    shared = len(_shared_folder(paths))
    names = os.fsencode("".join(f"{path[shared:]}\0" for path in paths))
    found = np.zeros((len(paths), 2), np.int64)
    yield from _each(size_and_time, paths, found)
    return Record(np.frombuffer(names, np.uint8), found[:, 0], found[:, 1], np.zeros(len(paths), np.uint64))


def _add_contents(record: Record, paths: Sequence[str], which: ndarray) -> Iterator[str]:
    found = np.zeros(which.sum(), np.uint64)
    yield from _each(_hash, _chosen(paths, which), found)
    record.contents[which] = found


def _each(look: Callable[[str], Any], paths: Sequence[str], found: ndarray) -> Iterator[str]:
    """Fill an array with what is found out about each file."""
    said = time.monotonic()
    for part, values in _in_parts(lambda part: list(map(look, paths[part])), len(paths)):
        found[part] = values
        if time.monotonic() - said > PATIENCE:
            said = time.monotonic()
            yield f"looked at {min(part.stop, len(paths))} of {len(paths)} files of the data"


def _in_parts(look: Callable[[slice], Values], count: int) -> Iterator[tuple[slice, Values]]:
    """Of so many files, one after another while that is quick; then several at once, since they have to be waited for.
    Threads that wait for nothing would get in each other's way."""
    size, begin = max(1, min(64, count // 1024)), time.monotonic()
    parts = iter([slice(first, first + size) for first in range(0, count, size)])
    for part in parts:
        yield part, look(part)
        if time.monotonic() - begin > 0.1 + QUICK * part.stop:
            break
    rest = list(parts)
    yield from zip(rest, map_threads(look, rest), strict=True)


def size_and_time(path: str) -> tuple[int, int]:
    """In bytes, and in nanoseconds; -1 where there is no such file."""
    try:
        status = os.stat(path)
    except OSError:  # reported when it is read
        return -1, 0
    return status.st_size, status.st_mtime_ns


def _hash(path: str) -> int:
    try:
        return int(checksum(Path(path)).sha256[:16], 16)
    except OSError:  # as above
        return 0


def _shared_folder(paths: Sequence[str]) -> str:
    """With its slash.

    >>> _shared_folder(["photos/train/cat/1.png", "photos/train/cow/1.png"])
    'photos/train/'
    """
    ends = [min(paths), max(paths)] if paths else []  # all others lie between them
    prefix = os.path.commonprefix(ends)  # noqa: RUF071 commonpath refuses relative beside absolute paths
    return prefix[: prefix.rfind(os.sep) + 1]


def _other_names(before: Record, now: Record, paths: Sequence[str]) -> str:
    """In words; '' if there are none."""
    if np.array_equal(before.names, now.names):
        return ""
    old, new = (os.fsdecode(record.names.tobytes()).split("\0")[:-1] for record in (before, now))
    kept, shared = set(old) & set(new), _shared_folder(paths)
    counts = [
        _count("missing", [shared + name for name in old if name not in kept]),
        _count("added", [shared + name for name in new if name not in kept]),
    ]
    return ", ".join(filter(None, counts)) or "the same files in another order"


def _chosen(paths: Sequence[str], which: ndarray) -> list[str]:
    return [paths[place] for place in np.flatnonzero(which).tolist()]


def _count(what: str, paths: Sequence[str], which: ndarray | None = None) -> str:
    """'' if there are none.

    >>> _count("missing", ["photos/cat/1.png", "photos/cat/2.png"])
    '2 files missing (first photos/cat/1.png)'
    """
    chosen = paths if which is None else _chosen(paths, which)
    if len(chosen) < 2:
        return f"1 file {what} ({printable(chosen[0])})" if chosen else ""
    return f"{len(chosen)} files {what} (first {printable(chosen[0])})"
