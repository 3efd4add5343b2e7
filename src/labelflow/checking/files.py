"""Files of images, read completely: whether they can be decoded, and what they are."""

import hashlib
import io
import os
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.pool import ThreadPool
from typing import NamedTuple, Self

import numpy as np
from numpy import ndarray
from PIL import Image, UnidentifiedImageError

from labelflow.data.checked import ANIMATED, FILE, ROTATED, TRANSPARENT, UNREADABLE, CheckedFiles, file_state
from labelflow.data.images import orientation, to_rgb
from labelflow.engine.progress import Counted

SAVE_EVERY = 10.0  # seconds; a kill loses no more than that
INACCESSIBLE, NOT_AN_IMAGE, TOO_LARGE, DAMAGED = "inaccessible", "not an image", "too large", "damaged"


class Examined(NamedTuple):
    """What a file is."""

    size: int = 0  # in bytes
    modified: int = 0  # when, in nanoseconds
    changed: int = 0
    content: int = 0  # a hash
    width: int = 0
    height: int = 0
    format: str = ""
    mode: str = ""
    flags: int = 0
    kind: str = ""  # of problem, if it can't be read
    reason: str = ""


def examine(path: str) -> Examined:
    """Read a file, and decode it as training does. A JPEG is decoded at an eighth of its size, which reads all of it,
    too, and finds the same files damaged in half the time or less."""
    try:
        with open(path, "rb") as file:
            state = file_state(os.fstat(file.fileno()))
            data = file.read()
    except (OSError, MemoryError) as error:
        return Examined(flags=UNREADABLE, kind=INACCESSIBLE, reason=getattr(error, "strerror", "") or "out of memory")
    content = int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
    found = Examined(*state, content)
    try:
        with Image.open(io.BytesIO(data)) as image:
            found = found._replace(width=image.width, height=image.height, format=image.format or "", mode=image.mode)
            turned = orientation(image)  # before it is decoded, which turns a TIFF and forgets that
            is_reduced = image.draft(None, (1, 1)) is not None
            width, height = to_rgb(image).size
            if is_reduced:
                width, height = (found.height, found.width) if turned > 4 else (found.width, found.height)
            return found._replace(width=width, height=height, flags=_flags(image, rotated=turned > 1))
    except Exception as error:  # damaged files make PIL raise all kinds of them
        kind, reason = _what_is_wrong(error, data)
        return found._replace(flags=UNREADABLE, kind=kind, reason=reason)


def _flags(image: Image.Image, rotated: bool) -> int:
    flags = ROTATED if rotated else 0
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        flags |= TRANSPARENT
    with suppress(Exception):  # later frames, which training does not read, may be damaged
        if image.format != "MPO" and getattr(image, "is_animated", False):  # an MPO has a preview behind its photograph
            flags |= ANIMATED
    return flags


def _what_is_wrong(error: Exception, data: bytes) -> tuple[str, str]:
    """The kind of problem, and the reason."""
    if isinstance(error, MemoryError):
        return INACCESSIBLE, "out of memory"
    if isinstance(error, UnidentifiedImageError):
        return NOT_AN_IMAGE, "cannot identify image file" if data else "the file is empty"
    return TOO_LARGE if isinstance(error, Image.DecompressionBombError) else DAMAGED, str(error)


class Files(NamedTuple):
    """All files of a check."""

    rows: ndarray  # (N,) FILE
    unreadable: dict[int, tuple[str, str]]  # by place: kind of problem, and why
    new: int  # how many were read, because they were unknown


def examine_all(
    checked: CheckedFiles, paths: Sequence[str], workers: int, quiet: bool = False, reread: bool = False
) -> Files:
    """Examine files by so many threads (decoding an image lets others work), except for those that are known.

    reread: those, too.
    """
    known = np.full(len(paths), -1) if reread else checked.find(paths)
    rows = np.zeros(len(paths), FILE)
    rows[known >= 0] = checked.files[known[known >= 0]]
    new = np.flatnonzero(known < 0).tolist()
    unreadable = {}
    with (
        Counted("checking", "images", len(paths), quiet=quiet) as progress,
        Memory(checked, rows, progress.say) as memory,
    ):
        progress.skip(len(paths) - len(new))
        with warnings.catch_warnings(), ThreadPool(workers) as pool:
            warnings.simplefilter("ignore")  # PIL's, of odd metadata and large images
            for place, found in zip(new, pool.imap(examine, (paths[place] for place in new), chunksize=4), strict=True):
                *facts, kind, reason = found
                rows[place] = (checked.key(paths[place]), *facts)
                if kind:
                    unreadable[place] = kind, reason
                memory.add(place)
                progress.advance(1)
        if new or len(checked.parts) > 1:
            memory.finish()
    return Files(rows, unreadable, len(new))


class Memory:
    """Writes down what is found, now and then and at the end. Where that is impossible it says so, once."""

    def __init__(self, checked: CheckedFiles, rows: ndarray, tell: Callable[[str], None]) -> None:
        self.checked, self.rows, self.tell = checked, rows, tell
        self.places: list[int] = []  # of files that are not written down yet
        self.saved, self.works = time.monotonic(), True

    def add(self, place: int) -> None:
        self.places.append(place)
        if time.monotonic() - self.saved > SAVE_EVERY:
            self._write(self.checked.add, self.rows[self.places])

    def finish(self) -> None:
        """All files, in one piece."""
        self._write(self.checked.replace, self.rows)

    def _write(self, how: Callable[[ndarray], None], rows: ndarray) -> None:
        self.places, self.saved = [], time.monotonic()
        if self.works and len(rows):
            try:
                how(rows)
            except OSError as error:
                self.works = False
                self.tell(f"cannot remember what was checked, so the next check reads all files again: {error}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._write(self.checked.add, self.rows[self.places])
