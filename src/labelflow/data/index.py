"""The images in class folders as arrays, not as objects: some 30 bytes each, shared by all data workers of a machine.
The index of a large folder is cached in a file, which is mapped into memory as long as the folder stays the same.

Shapes: N files, C class folders, S states.
"""

import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, chain
from operator import add
from pathlib import Path
from typing import NamedTuple, overload

import numpy as np
from numpy import ndarray

from labelflow.data.cache import CachedBytes, cache_folder, map_cached, write_cached
from labelflow.data.images import EXTENSIONS
from labelflow.data.scan import State, images_below, is_folder, leads_nowhere, settled_state, state_of
from labelflow.data.waiting import map_threads, now_and_then
from labelflow.spec import printable

FORMAT = 1  # of an index
SMALL = 10_000  # files that are listed at once: their index is not cached
CHUNK = 16  # folders that a thread looks at
PART = 10_000  # names that are decoded at once


class Arrays(NamedTuple):
    """What an index consists of, in this order in its file. Names are paths as bytes, each followed by a NUL."""

    starts: ndarray  # (C + 1,) int64: where the files of each class begin
    ends: ndarray  # (N + 1,) int64: where the name of each file ends and the next one begins
    states: ndarray  # (3 S,) int64: what must not have changed
    paths: ndarray  # uint8: what has these states, below the folder
    classes: ndarray  # uint8: names
    files: ndarray  # uint8: names of the images, below their class folders


WIDTHS = (8, 8, 8, 1, 1, 1)  # bytes


class FileIndex:
    """The images in the class folders of a folder, sorted by class and name."""

    def __init__(self, content: CachedBytes) -> None:
        self._content, self._arrays = content, _unpack(content.array)
        self.classes = _from_bytes(self._arrays.classes)
        self.starts: list[int] = self._arrays.starts.tolist()

    def __len__(self) -> int:
        return len(self._arrays.ends) - 1

    def __reduce__(self) -> tuple[type["FileIndex"], tuple[CachedBytes]]:
        return FileIndex, (self._content,)

    def of_class(self, name: str) -> range:
        """The places of its files; none if there is no such folder."""
        at = bisect_left(self.classes, name)
        there = at < len(self.classes) and self.classes[at] == name
        return range(self.starts[at], self.starts[at + 1]) if there else range(0)

    def name(self, place: int) -> str:
        """A file's path below its class folder."""
        _, ends, *_, files = self._arrays
        return os.fsdecode(files[ends[place] : ends[place + 1] - 1].tobytes())

    def names(self, places: ndarray | range) -> Iterator[str]:
        """Of many places, quicker than one by one if they lie close together."""
        _, ends, *_, files = self._arrays
        for start in range(0, len(places), PART):
            part = np.asarray(places[start : start + PART])
            first, last = part.min(), part.max()
            names = _from_bytes(files[ends[first] : ends[last + 1]])
            yield from map(names.__getitem__, (part - first).tolist())

    def is_current(self, folder: str) -> bool:
        """Whether nothing was added, removed or renamed since the folder was listed."""
        paths = [os.path.join(folder, path) for path in _from_bytes(self._arrays.paths)]
        return np.array_equal(np.ravel(list(map_threads(state_of, paths, CHUNK))), self._arrays.states)


class Paths(Sequence[str]):
    """Files of an index, by their paths, which are made when they are asked for."""

    def __init__(self, files: FileIndex, folders: Sequence[str], labels: ndarray, places: ndarray | range) -> None:
        """folders: of each label, with their slash; labels: (N,); places: (N,), in the index."""
        self.files, self.folders, self.labels, self.places = files, folders, labels, places

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[str]: ...
    def __getitem__(self, at: int | slice) -> str | Sequence[str]:
        if isinstance(at, slice):
            return Paths(self.files, self.folders, self.labels[at], self.places[at])
        return self.folders[self.labels[at]] + self.below(at)

    def __iter__(self) -> Iterator[str]:
        names = self.files.names(self.places)
        return map(add, map(self.folders.__getitem__, self.labels), names)

    def below(self, at: int) -> str:
        """A file's path below its class folder."""
        return self.files.name(int(self.places[at]))


class Joined(Sequence[str]):
    """Several sequences, one after another; none of them is copied."""

    def __init__(self, parts: Sequence[Sequence[str]]) -> None:
        self.parts, self.ends = parts, list(accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[str]: ...
    def __getitem__(self, at: int | slice) -> str | Sequence[str]:
        if isinstance(at, slice):
            first, last, step = at.indices(len(self))
            assert step == 1
            parts = zip(self.parts, [0, *self.ends], strict=False)
            return Joined([part[max(0, first - begin) : max(0, last - begin)] for part, begin in parts])
        at = range(len(self))[at]
        part = bisect_right(self.ends, at)
        return self.parts[part][at - self.ends[part]]  # from its end

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self.parts)


def open_index(folder: Path, tell: Callable[[str], None]) -> FileIndex:
    """The images in all class folders of a folder. tell: called with progress messages."""
    cache, version = cache_folder(folder), (FORMAT, sorted(EXTENSIONS))
    # machines that share a home may have different folders there
    file = cache / f"files-{folder.stat().st_ino:x}.index" if cache else None
    cached = map_cached(file, version)
    if cached and (index := FileIndex(cached)).is_current(str(folder)):
        return index
    arrays = _scan(str(folder), tell)
    is_small = len(arrays.ends) <= SMALL
    return FileIndex(write_cached(_pack(arrays), None if is_small else file, version))


class _ClassFiles(NamedTuple):
    ends: ndarray  # (N,)
    names: bytes
    states: list[State]


def _scan(folder: str, tell: Callable[[str], None]) -> Arrays:
    """List all class folders, several at once."""
    states = [State("", settled_state(folder))]  # before it is listed
    entries = [entry for entry in os.scandir(folder) if entry.name[0] != "."]
    classes = sorted(entry.name for entry in entries if is_folder(entry))
    states += [State(entry.name, state_of(entry.path)) for entry in entries if leads_nowhere(entry)]
    found: list[_ClassFiles] = []
    count, tell = 0, now_and_then(tell)
    for one in map_threads(partial(_scan_class, folder), classes):
        found.append(one)
        count += len(one.ends)
        tell(f"listed {count:,} files of {printable(folder)} ...")
    lengths = np.array([len(one.names) for one in found], np.int64)
    before = np.cumsum(lengths) - lengths  # bytes
    states += chain.from_iterable(one.states for one in found)
    return Arrays(
        np.cumsum([0, *(len(one.ends) for one in found)], dtype=np.int64),
        np.concatenate([[0], *(one.ends + first for one, first in zip(found, before, strict=True))]).astype(np.int64),
        np.array([state for _, state in states], np.int64).ravel(),
        _to_bytes(path for path, _ in states),
        _to_bytes(classes),
        np.frombuffer(b"".join(one.names for one in found), np.uint8),
    )


def _scan_class(folder: str, name: str) -> _ClassFiles:
    found = images_below(os.path.join(folder, name))
    names = [os.fsencode(f"{file}\0") for file in found.files]
    states = [State(f"{name}/{path}", state) for path, state in found.states]
    return _ClassFiles(np.cumsum([len(file) for file in names], dtype=np.int64), b"".join(names), states)


def _pack(arrays: Arrays) -> ndarray:
    """As in a file: the sizes and the arrays."""
    sizes = np.array([array.size for array in arrays], np.int64)
    return np.concatenate([array.view(np.uint8) for array in (sizes, *arrays)])


def _unpack(content: ndarray) -> Arrays:
    arrays, begin = [], 8 * len(WIDTHS)
    for size, width in zip(content[:begin].view(np.int64).tolist(), WIDTHS, strict=True):
        array = content[begin : begin + size * width]
        arrays.append(array.view(np.int64) if width == 8 else array)
        begin += size * width
    return Arrays(*arrays)


def _to_bytes(names: Iterable[str]) -> ndarray:
    return np.frombuffer(os.fsencode("".join(f"{name}\0" for name in names)), np.uint8)


def _from_bytes(names: ndarray) -> list[str]:
    return os.fsdecode(names.tobytes()).split("\0")[:-1]
