"""Images as models see them, before their colours are normalised: cropped, and changed in some way.

Shapes: S×S pixels, L levels of a change, B images at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy import ndarray
from numpy.random import Generator, default_rng
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from labelflow.chance import seed_of
from labelflow.data.loader import make_loader
from labelflow.data.preprocessing import Preprocessing
from labelflow.robust.sets import Set, image_number


class Change(Protocol):
    """What is done to pictures, at one or more levels."""

    @property
    def levels(self) -> int: ...
    @property
    def key(self) -> str:
        """Everything that decides what it does, but for the seed."""
        ...

    def __call__(self, picture: ndarray, level: int, random: Generator) -> ndarray:
        """uint8 (S, S, 3) in and out; levels count from 0. Each level of an image draws from the same beginning."""
        ...


class LateChange:
    """Done to whole batches where the models are, without chance: here, nothing."""

    levels, key = 1, "clean"

    def spread(self, pictures: Tensor) -> Tensor:
        """(B, 3, S, S) from 0 to 1 -> (B·L, 3, S, S), the levels of an image one after the other"""
        return pictures


CLEAN = LateChange()
AnyChange = Change | LateChange


class Picture(NamedTuple):
    levels: Tensor  # (L, 3, S, S) uint8
    label: int
    problem: str  # why the image could not be read, if it could not


class Batch(NamedTuple):
    pictures: Tensor  # (B·L, 3, S, S) uint8, the levels of an image one after the other
    labels: Tensor  # (B,)
    counts: Tensor  # (B,) bool: False where an image could not be read
    problems: list[str]


class Pictures(Dataset[Picture]):
    """The images of a set under several changes, by (change, image); as they are where a change is a late one."""

    def __init__(self, found: Set, preprocessing: Preprocessing, changes: Sequence[AnyChange], seed: int) -> None:
        self.source, self.seed, self.size = found.source, seed, preprocessing.size
        self.levels = [change.levels for change in changes]
        self.changes = [CLEAN if isinstance(change, LateChange) else change for change in changes]  # not to workers
        own = replace(preprocessing, crop_pct=1.0) if found.cropped else preprocessing
        self.transform = own.transform(normalize=False)  # uint8 (3, S, S)

    def __getitem__(self, draw: tuple[int, int]) -> Picture:
        change, index = self.changes[draw[0]], draw[1]
        try:
            image, label = self.source.load(index)
        except Exception as error:  # damaged files make PIL raise all kinds of them
            nothing = torch.zeros(change.levels, 3, self.size, self.size, dtype=torch.uint8)
            return Picture(nothing, 0, f"{self.source.name(index)}: {error}")
        return Picture(self._levels(change, image, index), label, "")

    def _levels(self, change: AnyChange, image: Image.Image, index: int) -> Tensor:
        """(L, 3, S, S), drawn from the image's own key: the same in any part of its set"""
        seen = self.transform(image)
        if isinstance(change, LateChange):
            return seen[None]
        picture = np.ascontiguousarray(seen.permute(1, 2, 0).numpy())
        seed = seed_of(self.seed, image_number(self.source, index))
        changed = [change(picture, level, default_rng(seed)) for level in range(change.levels)]
        return torch.from_numpy(np.stack(changed)).permute(0, 3, 1, 2).contiguous()


class _Batches:
    """(change, image): change by change, from an image of its own on, so many pictures at once."""

    def __init__(self, images: int, levels: Sequence[int], batch: int, firsts: Sequence[int]) -> None:
        """levels: of each change."""
        self.images, self.levels, self.batch, self.firsts = images, levels, batch, firsts

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for number, (levels, start) in enumerate(zip(self.levels, self.firsts, strict=True)):
            step = max(1, self.batch // levels)
            for first in range(start, self.images, step):
                yield [(number, index) for index in range(first, min(first + step, self.images))]


def load_pictures(pictures: Pictures, batch: int, workers: int, firsts: Sequence[int] = (0,)) -> "DataLoader[Batch]":
    """firsts: the image at which each change begins."""
    batches = _Batches(len(pictures.source), pictures.levels, batch, firsts)
    return make_loader(pictures, _collate, workers, batch_sampler=batches)


def _collate(seen: list[Picture]) -> Batch:
    problems = [one.problem for one in seen]
    return Batch(
        torch.cat([one.levels for one in seen]),
        torch.tensor([one.label for one in seen]),
        torch.tensor([not problem for problem in problems]),
        [problem for problem in problems if problem],
    )
