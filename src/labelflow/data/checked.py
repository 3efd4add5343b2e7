"""What `labelflow data check` has found out about the files of a folder, remembered between commands.

It is kept as parts, each written atomically and complete in itself, so that a check can be killed at any time and
several may run at once. A part that is damaged is ignored: its files are read again.

Shapes: N files that are asked about, M that are known.
"""

import hashlib
import os
import time
from collections.abc import Sequence
from multiprocessing.pool import ThreadPool
from pathlib import Path
from zipfile import BadZipFile
from zlib import error as ZlibError

import numpy as np
from numpy import ndarray

from labelflow.data.cache import cache_folder
from labelflow.data.scan import below
from labelflow.data.waiting import THREADS
from labelflow.files import atomic_write

UNREADABLE, ROTATED, ANIMATED, TRANSPARENT = 1, 2, 4, 8  # flags
FILE = np.dtype(
    [
        ("key", "<u8"),  # a hash of the name below the folder
        ("size", "<i8"),  # in bytes
        ("modified", "<i8"),  # when its contents were, in nanoseconds: anyone can set that
        ("changed", "<i8"),  # when its contents, name or permissions were
        ("content", "<u8"),  # a hash of the contents
        ("width", "<i4"),  # of the image, rotated as its EXIF data says; 0 if that is unknown
        ("height", "<i4"),
        ("format", "S8"),  # PIL's name; empty if it knows none
        ("mode", "S6"),  # PIL's, of the colours
        ("flags", "u1"),
    ]
)
STATE = ["size", "modified", "changed"]


class CheckedFiles:
    """The files of a folder as they were when they were read completely."""

    def __init__(self, root: Path | str) -> None:
        self.root, cache = str(root), cache_folder(root)
        self.folder = None if cache is None else cache / "check"
        self.parts = sorted(self.folder.glob("[!.]*.npz")) if self.folder else []
        files = np.concatenate([np.zeros(0, FILE), *map(_read, self.parts)])
        _, last = np.unique(files["key"][::-1], return_index=True)  # of a file that was read again
        self.files = files[::-1][last]  # (M,) FILE, sorted by key

    def key(self, path: str) -> int:
        digest = hashlib.blake2b(os.fsencode(below(path, self.root)), digest_size=8).digest()
        return int.from_bytes(digest, "little")

    def find(self, paths: Sequence[str]) -> ndarray:
        """(N,): where in `files` each of these is; -1 if it is new, has changed, or could not be read: what reads files
        may have changed, too."""
        if not len(self.files):
            return np.full(len(paths), -1)
        places = self._places(paths)
        return np.where(self._is_same(paths, places) & ~self._is_unreadable(places), places, -1)

    def find_unreadable(self, paths: Sequence[str]) -> list[str]:
        """Those of these files that could not be read when they were checked."""
        if not (self.files["flags"] & UNREADABLE).any():
            return []
        return _choose(paths, self._is_unreadable(self._places(paths)))

    def find_new(self, paths: Sequence[str]) -> Sequence[str]:
        """Those of the others that were not checked, or have changed since."""
        if not len(self.files):
            return paths
        places = self._places(paths)
        return _choose(paths, ~self._is_same(paths, places) & ~self._is_unreadable(places))

    def add(self, files: ndarray) -> None:
        """Remember files that were read, (N,) FILE."""
        if self.folder is None:
            raise OSError("there is no home folder; set LABELFLOW_CACHE to a folder for it")
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{time.time_ns():020d}-{os.getpid()}.npz"
        with atomic_write(path) as draft, open(draft, "wb") as file:
            np.savez_compressed(file, files=files)
        self.parts.append(path)

    def replace(self, files: ndarray) -> None:
        """Remember these files, and no others."""
        before, self.parts = self.parts, []
        self.add(files)
        for path in before:
            path.unlink(missing_ok=True)

    def _places(self, paths: Sequence[str]) -> ndarray:
        """(N,): where in `files` these names are; -1 if nowhere."""
        keys = np.fromiter(map(self.key, paths), np.uint64, len(paths))
        places = np.searchsorted(self.files["key"], keys) % len(self.files)
        return np.where(self.files["key"][places] == keys, places, -1)

    def _is_same(self, paths: Sequence[str], places: ndarray) -> ndarray:
        """(N,) bool: whether files are there and have not changed."""
        with ThreadPool(THREADS) as pool:
            states = pool.imap(_look, paths, chunksize=256)
            now = np.fromiter(states, [(what, np.int64) for what in STATE], len(paths))
        return (places >= 0) & np.all([self.files[what][places] == now[what] for what in STATE], axis=0)

    def _is_unreadable(self, places: ndarray) -> ndarray:
        """(N,) bool"""
        return (places >= 0) & (self.files["flags"][places] & UNREADABLE > 0)


def file_state(status: os.stat_result) -> tuple[int, int, int]:
    """What STATE names."""
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _look(path: str) -> tuple[int, int, int]:
    try:
        return file_state(os.stat(path))
    except OSError:  # reported when it is read
        return -1, 0, 0


def _choose(paths: Sequence[str], which: ndarray) -> list[str]:
    return [paths[place] for place in np.flatnonzero(which).tolist()]


def _read(path: Path) -> ndarray:
    """(N,) FILE; none if it is damaged, or of another version."""
    try:
        with open(path, "rb") as file, np.load(file) as arrays:
            files: ndarray = arrays["files"]
    except (OSError, ValueError, KeyError, TypeError, EOFError, NotImplementedError, BadZipFile, ZlibError):
        return np.zeros(0, FILE)
    return files if files.dtype == FILE else np.zeros(0, FILE)
