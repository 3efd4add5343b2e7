"""Batches on their way to a device."""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves


class Movable(Protocol):
    """A batch: a tree of tuples, lists and dicts with tensors."""

    def to(self, device: torch.device) -> Any: ...


def on_device(batches: Iterable[Movable], device: torch.device) -> Iterator[Any]:
    """One batch after the other on a device, as its `to` puts it there.

    To a GPU they go on a stream of their own. The program is ahead of the GPU: it asks for the next batch while the GPU
    computes with the one before, so that copying does not wait for that, nor that for copying. No batch is read before
    it is asked for: order, errors and what batches report are the same on every device.
    """
    for batch in batches:
        yield _copied(batch, device) if device.type == "cuda" else batch.to(device)


def _copied(batch: Movable, device: torch.device) -> Any:
    copying, computing = _copying_stream(device), torch.cuda.current_stream(device)
    with torch.cuda.stream(copying):
        moved = batch.to(device)
    computing.wait_stream(copying)
    for leaf in tree_leaves(moved):
        if isinstance(leaf, Tensor):
            leaf.record_stream(computing)  # its memory is not reused for copies before the GPU is done with it
    return moved


@cache
def _copying_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all: a stream keeps memory of its own."""
    return torch.cuda.Stream(device)
