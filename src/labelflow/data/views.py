"""Samples as a model sees them, each view drawn from (seed, epoch, position), and batches of them."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from numpy import ndarray
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, get_worker_info

from labelflow.chance import Purpose, restored_generators, seed_generators
from labelflow.data.batches import Draw
from labelflow.data.deferred import Deferred, Plan
from labelflow.data.erasing import Patch, Patches
from labelflow.data.geometry import Geometry, Pair, Tracked
from labelflow.data.growth import BySize, at_epoch
from labelflow.data.images import Decode, to_rgb
from labelflow.data.normalise import Normalise
from labelflow.data.several import is_multi_label, multi_hot
from labelflow.data.transforms import Transform
from labelflow.data.unreadable import Problem
from labelflow.sparse import TokenLabels

Sample = TypeVar("Sample")
TRIES = 20  # samples to try in training before giving up


class Source(Protocol):
    """A map-style data set."""

    @property
    def classes(self) -> Sequence[str]: ...
    def __len__(self) -> int: ...
    def load(self, index: int, decode: Decode = to_rgb) -> tuple[Any, Any]:
        """The image, which `decode` gets as soon as it is open, and its label, a number; a multi-hot array (C,) of a
        source that says `multi_label`."""
        ...

    def name(self, index: int) -> str:
        """For people."""
        ...

    def key(self, index: int) -> str:
        """The same for the same sample, wherever the data lies: labels are stored under it."""
        ...


class ViewLabels(Protocol):
    """What dense labels of a view are made of, when it is one of a batch."""

    @staticmethod
    def stack(views: Any) -> "BatchLabels": ...


class BatchLabels(Protocol):
    def to(self, device: torch.device) -> TokenLabels: ...


class Labeller(Protocol):
    """Dense labels of training samples."""

    def __call__(self, key: str, geometry: Geometry) -> ViewLabels: ...


class View(NamedTuple):
    image: Any  # bytes of Pillow's, (H, W, 3); a tensor (3, H, W), uint8 if it is to be one of a batch; a Deferred one
    label: Any  # a number, or an array (C,) float32 of 0 and 1
    weight: float
    problem: Problem | None = None  # why the sample could not be read, if it could not
    dense: ViewLabels | None = None
    patch: Patch | None = None  # what random erasing puts into it
    epoch: int = 0
    spatial: Any = None  # the image without changes of colours, of the same kind, where it is asked for

    @staticmethod
    def of(tracked: Tracked, label: Any, weight: float, **more: Any) -> "View":
        image, spatial = tracked.image if isinstance(tracked.image, Pair) else (tracked.image, None)
        return View(image, label, weight, patch=tracked.patch, spatial=spatial, **more)


class Batch(NamedTuple):
    images: Tensor  # (B, 3, H, W), normalised
    labels: Tensor  # (B,) long; (B, C) float of 0 and 1 where images have several
    weights: Tensor  # (B,): 0 where a sample does not count
    problems: list[Problem]  # samples that could not be read
    dense: TokenLabels | None = None  # labels of tokens, where there are any
    epoch: int = 0
    spatial: Tensor | None = None  # the images without changes of colours and random erasing, where asked for


class PixelBatch(NamedTuple):
    """A batch as workers make it: a quarter of the bytes, and the rest is done on the device."""

    pixels: Tensor  # (B, 3, H, W) uint8, in any layout
    labels: Tensor  # as of a Batch
    weights: Tensor
    problems: list[Problem]
    dense: BatchLabels | None
    patches: Patches  # what random erasing puts into the normalised images
    normalise: Normalise
    plan: Plan | None  # what is still to be done with the pixels, with `--augment device`
    epoch: int = 0
    spatial: Tensor | Plan | None = None  # pixels without changes of colours, or what makes them of these pixels

    def to(self, device: torch.device) -> Batch:
        pixels, labels, weights = (part.to(device, non_blocking=True) for part in self[:3])
        pixels = pixels.contiguous()
        images = self._images(pixels, self.plan, device)
        self.patches.paint(images)
        dense = self.dense.to(device) if self.dense else None
        spatial = None
        if isinstance(self.spatial, Plan):
            spatial = self._images(pixels, self.spatial, device)
        elif self.spatial is not None:
            spatial = self._images(self.spatial.to(device, non_blocking=True).contiguous(), None, device)
        return Batch(images, labels, weights, self.problems, dense, self.epoch, spatial)

    def _images(self, pixels: Tensor, plan: Plan | None, device: torch.device) -> Tensor:
        """Normalised, after what is still to be done."""
        return self.normalise(plan.to(device).apply(pixels, self.normalise.mean_colour) if plan else pixels)


def collate(views: list[View], normalise: Normalise) -> PixelBatch:
    deferred = [view.image for view in views if isinstance(view.image, Deferred)]  # all or none
    spatial: list[Any] = [view.spatial for view in views if view.spatial is not None]  # all or none
    return PixelBatch(
        _stack([image.pixels for image in deferred] or [view.image for view in views]),
        _stack_labels([view.label for view in views]),
        torch.tensor([view.weight for view in views]),
        [view.problem for view in views if view.problem],
        views[0].dense.stack([view.dense for view in views]) if views[0].dense else None,  # all or none
        Patches.stack([view.patch for view in views]),
        normalise,
        Plan.stack(deferred) if deferred else None,
        views[0].epoch,
        (Plan.stack(spatial) if deferred else _stack(spatial)) if spatial else None,
    )


def _stack_labels(labels: list[Any]) -> Tensor:
    """(B,) long, or (B, C) float"""
    return torch.from_numpy(np.stack(labels)) if isinstance(labels[0], ndarray) else torch.tensor(labels)


def _stack(images: list[Tensor] | list[ndarray]) -> Tensor:
    """(B, 3, H, W), in memory as they are: Pillow has the three bytes of a pixel side by side, and the device is
    quicker at moving them apart than a worker."""
    first = images[0]
    batch = _empty(len(images), first.shape, first.dtype if isinstance(first, Tensor) else torch.uint8)
    if isinstance(first, Tensor):
        return torch.stack(images, out=batch)  # type: ignore[arg-type]
    np.stack(images, out=batch.numpy())
    return batch.permute(0, 3, 1, 2)


def _empty(count: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Memory for a batch; in a worker it is shared with the main process, as that of `default_collate`."""
    like = torch.empty(0, dtype=dtype)
    if get_worker_info() is None:
        return like.new_empty(count, *shape)
    storage = like._typed_storage()._new_shared(count * math.prod(shape), device=like.device)
    return like.new(storage).view(count, *shape)


class Named(Protocol):
    """Samples that may turn out to be damaged."""

    def __len__(self) -> int: ...
    def name(self, index: int) -> str: ...


def load_sample(
    source: Named, load: Callable[[int], Sample], index: int, training: bool, blank: Callable[[], Sample]
) -> tuple[int, Sample, Problem | None]:
    """A sample, its index, and why the one that was asked for could not be read, if so. In training the next
    readable sample takes its place, in an evaluation a blank one, which must not count."""
    problem = None
    for place in range(index, index + (TRIES if training else 1)):
        index = place % len(source)
        try:
            return index, load(index), problem
        except Exception as error:  # damaged files make PIL raise all kinds of them
            problem = problem or Problem(source.name(index), str(error))
    if training:
        raise ValueError(f"cannot read {TRIES} samples in a row, the first of which is {problem}")
    return index, blank(), problem


class Views(Dataset[View]):
    """A source's samples, transformed; `load_sample` says what becomes of those that cannot be read."""

    def __init__(
        self,
        source: Source,
        transform: Transform | BySize[Transform],
        seed: int,
        training: bool,
        labeller: Labeller | BySize[Labeller] | None = None,
    ) -> None:
        self.source, self.transform, self.seed, self.training = source, transform, seed, training
        self.labeller = labeller

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, draw: Draw) -> View:
        return self.__getitems__([draw])[0]

    def __getitems__(self, draws: Sequence[Draw]) -> list[View]:
        """Those of a batch, which DataLoader asks for at once."""
        with restored_generators():
            return [self._view(draw) for draw in draws]

    def _view(self, draw: Draw) -> View:
        seed_generators(self.seed, Purpose.VIEW, draw.epoch, draw.position)
        transform, labeller = at_epoch(self.transform, draw.epoch), at_epoch(self.labeller, draw.epoch)
        load, blank = partial(self.source.load, decode=transform.decode), partial(self._blank, transform)
        index, (decoded, label), problem = load_sample(self.source, load, draw.sample, self.training, blank)
        tracked = transform(decoded)
        counts = self.training or not problem
        dense = labeller(self.source.key(index), tracked.geometry) if labeller else None
        weight = draw.weight if counts else 0.0
        return View.of(tracked, label, weight, problem=problem, dense=dense, epoch=draw.epoch)

    def _blank(self, transform: Transform) -> tuple[Any, Any]:
        label = multi_hot([], len(self.source.classes)) if is_multi_label(self.source) else 0
        return transform.decode(Image.new("RGB", (32, 32))), label
