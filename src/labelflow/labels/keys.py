"""The keys of samples: as lines of a file, and as an index that is searched without being read."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

if TYPE_CHECKING:
    from labelflow.data import Source

Array = np.ndarray[Any, np.dtype[Any]]


class SourceKeys(Sequence[str]):
    """Those of all samples of a source, made when they are asked for."""

    def __init__(self, source: "Source") -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[str]: ...
    def __getitem__(self, place: int | slice) -> str | Sequence[str]:
        chosen = range(len(self))[place]
        return self.source.key(chosen) if isinstance(chosen, int) else [self.source.key(one) for one in chosen]

    def __iter__(self) -> Iterator[str]:
        return map(self.source.key, range(len(self)))


def to_lines(keys: Sequence[str]) -> bytes:
    lines = _encode("".join(f"{key}\n" for key in keys))
    if lines.count(b"\n") > len(keys):
        broken = next(key for key in keys if "\n" in key)
        raise ValueError(f"a key must not contain a line break: {broken!r}")
    return lines


def from_lines(lines: bytes) -> list[str]:
    return lines.decode("utf-8", "surrogatepass").split("\n")[:-1]


def first_difference(begun: bytes, now: bytes) -> str:
    """Between as many lines; empty if there is none."""
    if begun == now:
        return ""
    lines = (text.decode(errors="replace").split("\n")[:-1] for text in (begun, now))  # they may be damaged
    pairs = zip(*lines, strict=False)
    return next((f"key {n} was {a!r}, not {b!r}" for n, (a, b) in enumerate(pairs) if a != b), "the keys differ")


def make_index(keys: Sequence[str]) -> Array:
    """(2, keys): sorted hashes, and the places of their keys."""
    hashes = _hashes(keys)
    places = np.argsort(hashes, kind="stable").astype("<u8")
    same = np.flatnonzero(hashes[places][1:] == hashes[places][:-1])
    if len(same):
        one, other = (keys[place] for place in places[same[0] : same[0] + 2])
        if one == other:
            raise ValueError(f"duplicate key {one!r}: two images differ in their extension only; rename one")
        raise ValueError(f"{one!r} and {other!r} have the same hash; rename one")
    return np.stack([hashes[places], places])


def find(index: Array, key: str) -> int | None:
    """The place of a key. A strange one is taken for another with a chance of 2**-64 for each sample."""
    hashes, places = index
    wanted = np.frombuffer(_hash(key), "<u8")[0]
    found = int(np.searchsorted(hashes, wanted))
    return int(places[found]) if found < len(hashes) and hashes[found] == wanted else None


def unknown(index: Array, keys: Sequence[str]) -> list[int]:
    """Which of many keys are not there."""
    return np.flatnonzero(~np.isin(_hashes(keys), index[0])).tolist()


def _hashes(keys: Sequence[str]) -> Array:
    return np.frombuffer(b"".join(map(_hash, keys)), "<u8")


def _hash(key: str) -> bytes:
    return hashlib.blake2b(_encode(key), digest_size=8).digest()


def _encode(text: str) -> bytes:
    """Names of files that are not UTF-8, too."""
    return text.encode("utf-8", "surrogatepass")
