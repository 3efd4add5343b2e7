"""Waiting for files: several at once, since each of them takes a while to answer on a network; with a line every few
seconds."""

import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.pool import ThreadPool
from typing import TypeVar

THREADS = 16
SECONDS = 3.0  # between two lines for people

Item = TypeVar("Item")
Value = TypeVar("Value")


def map_threads(look: Callable[[Item], Value], items: Sequence[Item], chunk: int = 1) -> Iterator[Value]:
    """`map` by as many threads as there are chunks of items, up to THREADS; by none where one would do."""
    threads = min(THREADS, -(-len(items) // chunk))
    if threads < 2:
        yield from map(look, items)
        return
    with ThreadPool(threads) as pool:
        yield from pool.imap(look, items, chunk)


def now_and_then(tell: Callable[[str], None]) -> Callable[[str], None]:
    """`tell`, but for messages less than SECONDS after the one before, or after the start."""
    said = time.monotonic()

    def tell_some(line: str) -> None:
        nonlocal said
        if time.monotonic() - said > SECONDS:
            said = time.monotonic()
            tell(line)

    return tell_some
