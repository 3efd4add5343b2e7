"""From an image and its mask to what a model sees (recipes: SwinSeg's pipeline), and batches of them.

Shapes: B batch, H×W pixels.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor
from torch.utils.data import DataLoader
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as T

from labelflow.data import Problem
from labelflow.data.normalise import Normalise
from labelflow.tasks.dense.layers import fit
from labelflow.tasks.dense.loading import DenseSource, Samples, View, load_evaluation, load_training
from labelflow.tasks.segment.data import Sample
from labelflow.tasks.segment.metrics import VOID
from labelflow.tasks.segment.settings import SegmentData

TRIES = 10  # of a crop, after the first


class Batch(NamedTuple):
    """A micro-batch to train on."""

    images: Tensor  # (B, 3, crop, crop)
    masks: Tensor  # (B, crop, crop): a class, or 255; uint8 until it gets to a device, then long
    problems: list[Problem]  # samples that could not be read

    def to(self, device: torch.device) -> "Batch":
        images, masks = (one.to(device, non_blocking=True) for one in self[:2])
        return Batch(images, masks.long(), self.problems)


class EvalBatch(NamedTuple):
    """Images of any sizes to evaluate on."""

    images: list[Tensor]  # (3, H, W) each: uint8 until they get to a device, then normalised
    masks: list[Tensor]  # (H, W) each, 255 everywhere where a sample does not count; uint8, then long, as above
    problems: list[Problem]
    normalise: Normalise

    def to(self, device: torch.device) -> "EvalBatch":
        images, masks = ([one.to(device, non_blocking=True) for one in part] for part in self[:2])
        seen = [self.normalise(image) for image in images]
        return self._replace(images=seen, masks=[mask.long() for mask in masks])


def train_view(sample: Sample, generator: Generator, data: SegmentData) -> tuple[Tensor, Tensor]:
    """Resized, cropped, flipped, recoloured, normalised, filled up: (3, crop, crop) and (crop, crop) uint8."""
    scale = _uniform(generator, *data.ratio)
    size = list(fit((sample.mask.shape[0], sample.mask.shape[1]), data.short, data.long, scale))
    image = T.resize(sample.image, size, antialias=True)
    mask = T.resize(sample.mask[None], size, v2.InterpolationMode.NEAREST_EXACT)[0]
    top, left, height, width = draw_crop(mask, data.crop, data.most, generator)
    image, mask = (one[..., top : top + height, left : left + width] for one in (image, mask))
    if _uniform(generator) < data.flip:
        image, mask = image.flip(-1), mask.flip(-1)
    colours = image.float() / 255
    if data.photometric:
        colours = recolour(colours, generator)
    colours = T.normalize(colours, list(data.mean), list(data.std))
    padding = (0, data.crop - width, 0, data.crop - height)  # left, right, top, bottom
    return F.pad(colours, padding), F.pad(mask, padding, value=VOID)


def eval_view(sample: Sample, generator: Generator) -> Sample:
    """Unchanged, at its own size."""
    return sample


def draw_crop(mask: Tensor, crop: int, most: float, generator: Generator) -> tuple[int, int, int, int]:
    """Top, left, height, width of a crop in which no class covers more than a part of what counts, if one is found."""
    height, width = (min(crop, side) for side in mask.shape)
    box = 0, 0, height, width
    for _ in range(1 + TRIES):
        top, left = (
            int(torch.randint(side - part + 1, (), generator=generator))
            for side, part in zip(mask.shape, (height, width), strict=True)
        )
        box = top, left, height, width
        counts = torch.bincount(mask[top : top + height, left : left + width].flatten(), minlength=VOID + 1)[:VOID]
        if counts.sum() and counts.max() <= most * counts.sum():
            break
    return box


def recolour(image: Tensor, generator: Generator) -> Tensor:
    """Each with probability ½: brightness ±32/255, contrast ×0.5–1.5 before or after the others, saturation ×0.5–1.5,
    hue ±a tenth of its circle. (3, H, W) in [0, 1], the same after each step."""
    first = _uniform(generator) < 0.5
    draws = [(_uniform(generator) < 0.5, _uniform(generator, -1, 1)) for _ in range(4)]
    (light, brightness), (contrasts, contrast), (saturates, saturation), (turns, hue) = draws
    if light:
        image = (image + brightness * 32 / 255).clamp(0, 1)
    if contrasts and first:
        image = (image * (1 + contrast / 2)).clamp(0, 1)
    if saturates:
        image = saturate(image, 1 + saturation / 2)
    if turns:
        image = T.adjust_hue(image, hue * 18 / 180)
    if contrasts and not first:
        image = (image * (1 + contrast / 2)).clamp(0, 1)
    return image


def saturate(image: Tensor, factor: float) -> Tensor:
    """HSV's saturation, 1 - min/max, times a factor, 1 at most; hue and value stay. (3, H, W)"""
    value, low = image.amax(0), image.amin(0)
    factors = (value / (value - low).clamp_min(1e-6)).clamp_max(factor)  # (H, W)
    return value - (value - image) * factors


def train_batches(source: DenseSource, data: SegmentData, *, seed: int, **plan: int) -> Iterator[Batch]:
    """The micro-batches of one process, update by update: see `load_training`."""
    return load_training(Samples(source, partial(train_view, data=data), seed, True), _stack, data.workers, **plan)


def eval_batches(source: DenseSource, data: SegmentData, **plan: int) -> "DataLoader[EvalBatch]":
    """Every sample once: see `load_evaluation`."""
    collate = partial(_list, normalise=Normalise(data.mean, data.std))
    return load_evaluation(Samples(source, eval_view), collate, data.workers, **plan)


def _stack(views: list[View]) -> Batch:
    images, masks = zip(*(view.content for view in views), strict=True)
    return Batch(torch.stack(images), torch.stack(masks), [view.problem for view in views if view.problem])


def _list(views: list[View], normalise: Normalise) -> EvalBatch:
    images = [view.content[0] for view in views]
    masks = [view.content[1] if view.weight else torch.full_like(view.content[1], VOID) for view in views]
    return EvalBatch(images, masks, [view.problem for view in views if view.problem], normalise)


def _uniform(generator: Generator, low: float = 0.0, high: float = 1.0) -> float:
    return low + (high - low) * float(torch.rand((), generator=generator))
