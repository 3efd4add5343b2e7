"""Randomness as a function of a key, never of a process's history.

Every random draw of a training run comes from a key of whole numbers, such as (seed, purpose, epoch, position). A run
that is resumed anywhere, or read by another number of workers or processes, therefore draws the same.
"""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import numpy as np
import torch


class Purpose(IntEnum):
    """What a draw is for. Two purposes never share a draw."""

    WEIGHTS = 0  # key: ()
    ORDER = 1  # key: (epoch,)
    VIEW = 2  # key: (epoch, position), the augmentation of one sample
    MIX = 3  # key: (update, micro-batch)
    MODEL = 4  # key: (update, micro-batch), drop-path and dropout


def seed_of(*key: int) -> int:
    """A well mixed 63-bit seed. Keys of other lengths, or in another order, have nothing to do with one another.

    >>> seed_of(0, 1) != seed_of(1, 0) != seed_of(0)
    True
    """
    name = " ".join(str(int(number)) for number in key)
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) >> 1


def generator(*key: int) -> torch.Generator:
    """A generator for this key alone, on the CPU.

    >>> bool(torch.rand(1, generator=generator(7, 1)) == torch.rand(1, generator=generator(7, 1)))
    True
    """
    return torch.Generator().manual_seed(seed_of(*key))


@contextmanager
def drawn_from(*key: int) -> Iterator[None]:
    """Seeds the global generators of Python, numpy and torch, which transforms use, by the key; then restores them."""
    with restored_generators():
        seed_generators(*key)
        yield


@contextmanager
def restored_generators() -> Iterator[None]:
    """Afterwards the global generators are as they were before. It costs more than seeding them: once for a batch."""
    states = random.getstate(), np.random.get_state(), torch.default_generator.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.default_generator.set_state(states[2])


def seed_generators(*key: int) -> None:
    """Seed the global generators of Python, numpy and torch."""
    seed = seed_of(*key)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002
    torch.default_generator.manual_seed(seed)
