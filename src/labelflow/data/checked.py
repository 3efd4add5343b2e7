"""What `labelflow data check` has found out about the files of a folder, remembered between commands.

It is kept as parts, each written atomically and complete in itself, so that a check can be killed at any time and
several may run at once. A part that is damaged is ignored: its files are read again.

Shapes: N files that are asked about, M that are known.
"""

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from multiprocessing.pool import ThreadPool
from pathlib import Path
from zipfile import BadZipFile
from zlib import error as ZlibError

import numpy as np
from numpy import ndarray

from labelflow.data.cache import cache_folder
from labelflow.data.changes import size_and_time
from labelflow.data.waiting import THREADS
from labelflow.files import atomic_write

UNREADABLE, ROTATED, ANIMATED, TRANSPARENT = 1, 2, 4, 8  # flags
FILE = np.dtype(
    [
        ("key", "<u8"),  # a hash of the name below the folder
        ("size", "<i8"),  # in bytes
        ("time", "<i8"),  # when it was modified, in nanoseconds
        ("content", "<u8"),  # a hash of the contents
        ("width", "<i4"),  # of the image, rotated as its EXIF data says; 0 if that is unknown
        ("height", "<i4"),
        ("format", "S8"),  # PIL's name; empty if it knows none
        ("mode", "S6"),  # PIL's, of the colours
        ("flags", "u1"),
    ]
)
Reasons = dict[str, tuple[str, str]]  # name of an unreadable file below the folder: kind of problem, and why


class CheckedFiles:
    """The files of a folder as they were when they were read completely."""

    def __init__(self, root: Path | str) -> None:
        cache = cache_folder(root)
        self.folder = cache / "check" if cache else None
        self.prefix = os.path.join(Path(root), "")  # of paths; those below . may lack it
        self.parts = sorted(self.folder.glob("[!.]*.npz")) if self.folder else []
        found = [part for part in map(_read, self.parts) if part]
        files = np.concatenate([np.zeros(0, FILE), *(files for files, _ in found)])
        _, last = np.unique(files["key"][::-1], return_index=True)  # of a file that was read again
        self.files = files[::-1][last]  # (M,) FILE, sorted by key
        self.unreadable: Reasons = {name: why for _, reasons in found for name, why in reasons.items()}

    def name(self, path: str) -> str:
        """Below the folder."""
        return path.removeprefix(self.prefix)

    def key(self, path: str) -> int:
        digest = hashlib.blake2b(os.fsencode(self.name(path)), digest_size=8).digest()
        return int.from_bytes(digest, "little")

    def find(self, paths: Sequence[str]) -> ndarray:
        """(N,): where in `files` each of these is; -1 if it is new, or of another size or time than it was."""
        if not len(self.files):
            return np.full(len(paths), -1)
        keys = np.fromiter(map(self.key, paths), np.uint64, len(paths))
        places = np.searchsorted(self.files["key"], keys) % len(self.files)
        known = self.files["key"][places] == keys
        with ThreadPool(THREADS) as pool:
            looks = pool.imap(size_and_time, paths, chunksize=256)
            now = np.fromiter(looks, [("size", np.int64), ("time", np.int64)], len(paths))
        for what in ("size", "time"):
            known &= self.files[what][places] == now[what]
        return np.where(known, places, -1)

    def find_unreadable(self, paths: Sequence[str]) -> dict[str, str]:
        """Those of these files that can't be read, and why."""
        if not self.unreadable:
            return {}
        there = [path for path in paths if self.name(path) in self.unreadable]
        places = self.find(there)
        bad = (places >= 0) & (self.files["flags"][places] & UNREADABLE > 0)
        return {path: self.unreadable[self.name(path)][1] for path, is_bad in zip(there, bad, strict=True) if is_bad}

    def find_new(self, paths: Sequence[str]) -> list[str]:
        """Those of these files that were not checked, or have changed since."""
        return [paths[place] for place in np.flatnonzero(self.find(paths) < 0).tolist()]

    def add(self, files: ndarray, unreadable: Mapping[str, tuple[str, str]]) -> None:
        """Remember files that were read, (N,) FILE."""
        if self.folder is None:
            raise OSError("there is no home folder; set LABELFLOW_CACHE to a folder for it")
        self.folder.mkdir(parents=True, exist_ok=True)
        reasons = np.frombuffer(json.dumps(unreadable).encode(), np.uint8)
        path = self.folder / f"{time.time_ns():020d}-{os.getpid()}.npz"
        with atomic_write(path) as draft, open(draft, "wb") as file:
            np.savez_compressed(file, files=files, unreadable=reasons)
        self.parts.append(path)

    def replace(self, files: ndarray, unreadable: Mapping[str, tuple[str, str]]) -> None:
        """Remember these files, and no others."""
        before, self.parts = self.parts, []
        self.add(files, unreadable)
        for path in before:
            path.unlink(missing_ok=True)


def _read(path: Path) -> tuple[ndarray, Reasons] | None:
    """None if it is damaged, or of another version."""
    try:
        with open(path, "rb") as file, np.load(file) as arrays:
            files, reasons = arrays["files"], json.loads(arrays["unreadable"].tobytes())
        unreadable = {name: (kind, reason) for name, (kind, reason) in reasons.items()}
    except (OSError, ValueError, KeyError, TypeError, EOFError, NotImplementedError, BadZipFile, ZlibError):
        return None
    return (files, unreadable) if files.dtype == FILE else None
