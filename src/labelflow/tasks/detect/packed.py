"""Many small things in one block of memory."""

import pickle
from collections.abc import Iterable
from typing import Generic, TypeVar

import numpy as np

Item = TypeVar("Item")


class Packed(Generic[Item]):
    """Items in one buffer. Processes that read them share it: no item's reference count is there to be touched, which
    would copy the page of memory that it lies on.

    >>> Packed(["cat", "dog"])[1]
    'dog'
    """

    def __init__(self, items: Iterable[Item]) -> None:
        pickled = [pickle.dumps(item, pickle.HIGHEST_PROTOCOL) for item in items]
        self._bounds = np.cumsum([0, *map(len, pickled)], dtype=np.int64)
        self._buffer = np.frombuffer(b"".join(pickled), np.uint8)

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __getitem__(self, index: int) -> Item:
        if not 0 <= index < len(self):
            raise IndexError(f"there are {len(self)} items, from 0 on; {index} is none of them")
        item: Item = pickle.loads(self._buffer[self._bounds[index] : self._bounds[index + 1]].data)
        return item
