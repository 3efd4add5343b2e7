"""From an image and its objects to what a detector sees (recipes: SwinDet's augmentation), and batches of them.

Shapes: T objects, H×W pixels.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.utils.data import DataLoader
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as T

from labelflow.data import Problem
from labelflow.data.normalise import Normalise
from labelflow.tasks.dense.layers import fit
from labelflow.tasks.dense.loading import DenseSource, Samples, View, load_evaluation, load_training
from labelflow.tasks.detect.data import Sample
from labelflow.tasks.detect.settings import DetectData

FROM_0_TO_1 = Normalise((0.0,) * 3, (1.0,) * 3)
LEAST = 1.0  # pixels of a box that is left after a crop, at least


class Batch(NamedTuple):
    """Images of any sizes, and what is true of them."""

    images: list[Tensor]  # (3, H, W) each: uint8 until they get to a device, then from 0 to 1
    targets: list[dict[str, Tensor]]  # boxes (T, 4), labels (T,), masks (T, H, W) each; none in an evaluation
    numbers: list[int]  # the images' ids
    weights: list[float]  # 0 where a sample does not count
    problems: list[Problem]  # samples that could not be read

    def to(self, device: torch.device) -> "Batch":
        images = [FROM_0_TO_1(image.to(device, non_blocking=True)) for image in self.images]
        targets = [{name: part.to(device, non_blocking=True) for name, part in one.items()} for one in self.targets]
        return Batch(images, targets, self.numbers, self.weights, self.problems)


def train_view(sample: Sample, generator: Generator, data: DetectData) -> Sample:
    """Flipped, cropped or not, resized to one of several sizes."""
    if _uniform(generator) < data.flip:
        sample = flip(sample)
    if _uniform(generator) < data.crop_chance:
        sample = resize(sample, _one_of(data.crop_sides, generator), data.longest)
        sample = crop(sample, draw_crop(sample, data.crop_range, generator))
    return resize(sample, _one_of(data.sides, generator), data.longest)


def eval_view(sample: Sample, generator: Generator) -> Sample:
    """Unchanged: a detector resizes by itself, and answers in the pixels of what it was given."""
    return sample


def flip(sample: Sample) -> Sample:
    """Left and right changed."""
    boxes = T.horizontal_flip(_boxes(sample))
    image, masks = T.horizontal_flip(sample.image), T.horizontal_flip(sample.masks)
    return sample._replace(image=image, boxes=boxes.as_subclass(Tensor), masks=masks)


def resize(sample: Sample, short: int, longest: int) -> Sample:
    """The shorter side becomes `short`, unless the longer one would become longer than `longest`."""
    size = list(fit((sample.image.shape[1], sample.image.shape[2]), short, longest))
    boxes = T.resize(_boxes(sample), size)
    masks = T.resize(sample.masks, size, v2.InterpolationMode.NEAREST_EXACT) if len(sample.masks) else None
    image = T.resize(sample.image, size, antialias=True)
    return sample._replace(
        image=image, boxes=boxes.as_subclass(Tensor), masks=sample.masks.new_zeros(0, *size) if masks is None else masks
    )


def draw_crop(sample: Sample, limits: tuple[int, int], generator: Generator) -> tuple[int, int, int, int]:
    """Top, left, height, width: any size within the limits and the image, anywhere."""
    sizes, starts = [], []
    for side in sample.image.shape[1:]:
        low, high = (min(side, limit) for limit in limits)
        sizes.append(int(torch.randint(low, high + 1, (), generator=generator)))
        starts.append(int(torch.randint(side - sizes[-1] + 1, (), generator=generator)))
    return starts[0], starts[1], sizes[0], sizes[1]


def crop(sample: Sample, box: tuple[int, int, int, int]) -> Sample:
    """A part of it. Objects of which nothing is left are left out; there may be none."""
    boxes = T.clamp_bounding_boxes(T.crop(_boxes(sample), *box)).as_subclass(Tensor)
    image, masks = T.crop(sample.image, *box), T.crop(sample.masks, *box)
    left = ((boxes[:, 2:] - boxes[:, :2]) >= LEAST).all(1) & masks.bool().flatten(1).any(1)
    return sample._replace(image=image, boxes=boxes[left], labels=sample.labels[left], masks=masks[left])


def train_batches(source: DenseSource, data: DetectData, *, seed: int, **plan: int) -> Iterator[Batch]:
    """The micro-batches of one process, update by update: see `load_training`."""
    return load_training(Samples(source, partial(train_view, data=data), seed, True), collate, data.workers, **plan)


def eval_batches(source: DenseSource, data: DetectData, **plan: int) -> "DataLoader[Batch]":
    """Every image once: see `load_evaluation`."""
    return load_evaluation(Samples(source, eval_view), collate_images, data.workers, **plan)


def collate(views: list[View]) -> Batch:
    samples: list[Sample] = [view.content for view in views]
    return Batch(
        [sample.image for sample in samples],
        [{"boxes": sample.boxes, "labels": sample.labels, "masks": sample.masks} for sample in samples],
        [sample.number for sample in samples],
        [view.weight for view in views],
        [view.problem for view in views if view.problem],
    )


def collate_images(views: list[View]) -> Batch:
    """Without targets: an evaluation compares with the annotations of all images at once."""
    return collate(views)._replace(targets=[])


def _boxes(sample: Sample) -> tv_tensors.BoundingBoxes:
    return tv_tensors.BoundingBoxes(sample.boxes, format="XYXY", canvas_size=tuple(sample.image.shape[1:]))


def _one_of(options: tuple[int, ...], generator: Generator) -> int:
    return options[int(torch.randint(len(options), (), generator=generator))]


def _uniform(generator: Generator) -> float:
    return float(torch.rand((), generator=generator))
