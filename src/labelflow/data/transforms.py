"""From an image to its bytes in a tensor, with timm's transforms."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from PIL import Image
from timm.data import auto_augment, create_transform
from timm.data.random_erasing import RandomErasing
from torch import Tensor

from labelflow.data.deferred import DecodedCrop, Resize, defer
from labelflow.data.geometry import Geometry, OnImage, Pair, Tracked, follow, in_pairs, operations
from labelflow.data.images import to_rgb
from labelflow.data.settings import Data
from labelflow.data.simple_crop import SimpleCrop


class Transform(Protocol):
    """From an image to a view, in two parts: what can't be read fails in the first."""

    def decode(self, image: Image.Image, /) -> Any:
        """An image that was opened, and maybe not read yet."""
        ...

    def __call__(self, decoded: Any, /) -> Tracked:
        """Its image is what a `View` may have."""
        ...


class Steps:
    """One step after another, on a tracked image."""

    def __init__(self, *steps: Callable[[Tracked], Tracked]) -> None:
        self.steps = steps

    def decode(self, image: Image.Image) -> Image.Image:
        return to_rgb(image)

    def __call__(self, image: Image.Image) -> Tracked:
        tracked = Tracked(image, Geometry(image.size))
        for step in self.steps:
            tracked = step(tracked)
        return tracked


class DeferredSteps:
    """A crop, while the image is decoded; the steps after it are recorded for the device."""

    def __init__(self, crop: DecodedCrop, *steps: Callable[[Tracked], Tracked]) -> None:
        self.crop, self.steps = crop, steps

    def decode(self, image: Image.Image) -> Tracked:
        return self.crop(image)

    def __call__(self, tracked: Tracked) -> Tracked:
        for step in self.steps:
            tracked = step(tracked)
        return tracked


def train_transform(data: Data, spatial: bool = False) -> Transform:
    """Random crop, flip, RandAugment or colour jitter, random erasing. Drawn as timm draws them; not normalised. With
    `data.augment == "device"`, all but the crop is left to the device. spatial: a `Pair` of views, of which the second
    is the first without changes of colours; nothing else is drawn."""
    transform = create_transform(
        data.image_size,
        is_training=True,
        scale=data.scale,
        ratio=data.ratio,
        hflip=data.flip,
        color_jitter=data.color_jitter or None,
        auto_augment=data.auto_augment or None,
        interpolation=data.interpolation,
        mean=data.mean,
        use_prefetcher=True,  # uint8
    )
    crop, *steps, _ = transform.transforms  # all but the last, which makes tensors
    if data.erasing:
        steps.append(RandomErasing(data.erasing, device="cpu"))  # its noise comes later
    for step in steps:
        for operation in operations(step):
            if operation.aug_fn is auto_augment.posterize:
                operation.aug_fn = _posterize
    both = [in_pairs] if spatial else []
    if data.augment == "workers":
        first = SimpleCrop(crop) if data.crop == "simple" else follow(crop)
        return Steps(first, *both, *(follow(step) for step in steps), as_arrays)
    return DeferredSteps(DecodedCrop(crop), Resize(crop), *both, *(follow(defer(step)) for step in steps))


def as_arrays(tracked: Tracked) -> Tracked:
    """Bytes, as they are in memory."""
    image = tracked.image
    return replace(tracked, image=image.both(np.asarray) if isinstance(image, Pair) else np.asarray(image))


def _posterize(image: Image.Image, bits: int, **unused: Any) -> Image.Image:
    """timm asks for 0 bits at times, which Pillow refuses since version 13; before, the image turned black."""
    return Image.new(image.mode, image.size) if bits < 1 else auto_augment.posterize(image, bits)


def as_view(transform: Callable[[Image.Image], Tensor]) -> Transform:
    """A transform whose geometry nobody asks for."""
    return Steps(OnImage(transform))
