"""Images as models see them, before normalisation: cropped, resized and perturbed.

Shapes: S×S pixels, L levels of a perturbation, B images.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

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
from labelflow.data.several import multi_hot
from labelflow.data.unreadable import Problem
from labelflow.robustness.datasets import ImageSet, image_seed


class Perturbation(Protocol):
    """Changes an image, at one or more levels."""

    @property
    def levels(self) -> int: ...
    @property
    def key(self) -> str:
        """Identifies all that it does, except for the seed."""
        ...

    def __call__(self, image: ndarray, level: int, random: Generator) -> ndarray:
        """uint8 (S, S, 3) in and out; levels count from 0. Each level of an image starts from the same random state."""
        ...


class BatchPerturbation:
    """A deterministic perturbation of whole batches, on the models' device; this one leaves them unchanged."""

    levels, key = 1, "clean"

    def apply(self, images: Tensor) -> Tensor:
        """(B, 3, S, S) from 0 to 1 -> (B·L, 3, S, S), the levels of an image one after the other"""
        return images


CLEAN = BatchPerturbation()
AnyPerturbation = Perturbation | BatchPerturbation


class Sample(NamedTuple):
    levels: Tensor  # (L, 3, S, S) uint8
    label: Any  # a number; or, of several labels, (C,), 0 and 1
    error: Problem | None  # why the image could not be read, if it could not


class ImageBatch(NamedTuple):
    images: Tensor  # (B·L, 3, S, S) uint8, the levels of an image one after the other
    labels: Tensor  # (B,), or (B, C)
    readable: Tensor  # (B,) bool
    errors: list[Problem]


class PerturbedImages(Dataset[Sample]):
    """An image set under several perturbations, by (perturbation, image). Batch perturbations are applied later."""

    def __init__(
        self, dataset: ImageSet, preprocessing: Preprocessing, perturbations: Sequence[AnyPerturbation], seed: int
    ) -> None:
        self.source, self.seed, self.size = dataset.source, seed, preprocessing.size
        self.no_label = multi_hot([], len(dataset.classes)) if dataset.several else 0  # of unreadable images
        self.levels = [perturbation.levels for perturbation in perturbations]
        # Batch perturbations may hold a model, which should not be sent to worker processes.
        self.perturbations = [CLEAN if isinstance(one, BatchPerturbation) else one for one in perturbations]
        if dataset.cropped:
            preprocessing = replace(preprocessing, crop_pct=1.0)
        self.transform = preprocessing.transform(normalize=False)  # uint8 (3, S, S)

    def __getitem__(self, key: tuple[int, int]) -> Sample:
        perturbation, index = self.perturbations[key[0]], key[1]
        try:
            image, label = self.source.load(index)
        except Exception as error:  # damaged files make PIL raise all kinds of them
            black = torch.zeros(perturbation.levels, 3, self.size, self.size, dtype=torch.uint8)
            return Sample(black, self.no_label, Problem(self.source.name(index), str(error)))
        return Sample(self._levels(perturbation, image, index), label, None)

    def _levels(self, perturbation: AnyPerturbation, image: Image.Image, index: int) -> Tensor:
        """(L, 3, S, S), seeded by the image's own key: the same in any subset"""
        cropped = self.transform(image)
        if isinstance(perturbation, BatchPerturbation):
            return cropped[None]
        pixels = np.ascontiguousarray(cropped.permute(1, 2, 0).numpy())
        seed = seed_of(self.seed, image_seed(self.source, index))
        levels = [perturbation(pixels, level, default_rng(seed)) for level in range(perturbation.levels)]
        return torch.from_numpy(np.stack(levels)).permute(0, 3, 1, 2).contiguous()


class _BatchSampler:
    """Batches of (perturbation, image), one perturbation after the other."""

    def __init__(self, images: int, levels: Sequence[int], batch: int, starts: Sequence[int]) -> None:
        """levels: of each perturbation; batch: images at all levels; starts: each perturbation's first image."""
        self.images, self.levels, self.batch, self.starts = images, levels, batch, starts

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for number, (levels, start) in enumerate(zip(self.levels, self.starts, strict=True)):
            step = max(1, self.batch // levels)
            for first in range(start, self.images, step):
                yield [(number, index) for index in range(first, min(first + step, self.images))]


def load_images(
    images: PerturbedImages, batch: int, workers: int, starts: Sequence[int] = (0,)
) -> "DataLoader[ImageBatch]":
    """starts: the first image of each perturbation."""
    sampler = _BatchSampler(len(images.source), images.levels, batch, starts)
    return make_loader(images, _collate, workers, batch_sampler=sampler)


def _collate(samples: list[Sample]) -> ImageBatch:
    return ImageBatch(
        torch.cat([sample.levels for sample in samples]),
        torch.from_numpy(np.stack([sample.label for sample in samples])),
        torch.tensor([not sample.error for sample in samples]),
        [sample.error for sample in samples if sample.error],
    )
