"""What is remembered of data between commands, outside of it, so that nobody's images are touched."""

import hashlib
import os
import uuid
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from labelflow.files import atomic_write

DIGEST = 32  # bytes, at the end of a file


def cache_folder(data: Path | str) -> Path | None:
    """Where to remember things about a folder of images or of shards: in $LABELFLOW_CACHE, or in labelflow/ of the
    user's cache folder; None for users without a home. It may not exist yet; whatever is in it can be made again."""
    given = os.environ.get("LABELFLOW_CACHE")
    try:
        base = Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "labelflow"
    except RuntimeError:  # in a container, for example, that doesn't know the user
        return None
    place = os.path.realpath(data)
    digest = hashlib.blake2b(os.fsencode(place), digest_size=6).hexdigest()
    return base / "data" / f"{os.path.basename(place)}-{digest}"


class CachedBytes:
    """An array of bytes, in memory or mapped from a file that all processes share."""

    def __init__(self, array: ndarray, file: Path | None = None, digest: bytes = b"") -> None:
        self.array, self.file, self.digest = array, file, digest

    def __reduce__(self) -> tuple[Any, ...]:
        """A spawned worker maps the file, unless a newer one has taken its place."""
        if self.file and _map(self.file, self.digest):
            return _reopen, (self.file, self.digest)
        return CachedBytes, (self.array,)


def map_cached(file: Path | None, version: object) -> CachedBytes | None:
    """The content of a file, which is read once to compute its digest; None if there is none, or if it is damaged or of
    another version. version: what the content depends on; its repr is part of the digest."""
    found = _map(file) if file else None
    return found if found and found.digest == _digest(found.array, version) else None


def write_cached(content: ndarray, file: Path | None, version: object) -> CachedBytes:
    """Written to a file and mapped from there; in memory where that is not possible."""
    if file is None:
        return CachedBytes(content)
    digest = _digest(content, version)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(file, mark=f"-{uuid.uuid4().hex}") as draft, open(draft, "wb") as opened:
            content.tofile(opened)
            opened.write(digest)
    except OSError:
        return CachedBytes(content)
    return _map(file, digest) or CachedBytes(content)


def _digest(content: ndarray, version: object) -> bytes:
    digest = hashlib.blake2b(repr(version).encode(), digest_size=DIGEST)
    digest.update(content.data)
    return digest.digest()


def _map(file: Path, digest: bytes = b"") -> CachedBytes | None:
    """None if there is no such file. digest: that it has to end with, if given."""
    try:
        content = np.asarray(np.memmap(file, np.uint8, "r"))
    except (OSError, ValueError):  # an empty file
        return None
    found = CachedBytes(content[:-DIGEST], file, content[-DIGEST:].tobytes())
    return found if digest in (b"", found.digest) else None


def _reopen(file: Path, digest: bytes) -> CachedBytes:
    content = _map(file, digest)
    if content is None:
        raise ValueError(f"{file} was replaced or removed while workers started; start again")
    return content
