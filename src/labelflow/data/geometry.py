"""Where the pixels of a view come from: one affine map per sample, recorded where it is drawn.

Coordinates are fractions: (0, 0) is the upper left corner of an image, (1, 1) its lower right one.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from timm.data import auto_augment
from timm.data.random_erasing import RandomErasing
from timm.data.transforms import RandomResizedCropAndInterpolation
from torchvision.transforms import InterpolationMode, RandomHorizontalFlip
from torchvision.transforms import functional as F

from labelflow.data.erasing import Patch, draw_patch

Matrix = np.ndarray[Any, np.dtype[np.float64]]  # (3, 3), for column vectors (x, y, 1)
IDENTITY = np.eye(3)
MIRROR = np.array([[-1.0, 0, 1], [0, 1, 0], [0, 0, 1]])


@dataclass(frozen=True, eq=False)
class Geometry:
    """How a view was taken: a box of the image, maybe mirrored, then maybe moved within its frame, once or more often.

    What a move pushes out of the frame is gone, and what it pulls in is empty.
    """

    size: tuple[int, int]  # width and height of the image, in pixels
    box: tuple[float, float, float, float] = (0.0, 0.0, 1.0, 1.0)  # top, left, height, width
    mirrored: bool = False
    frames: tuple[Matrix, ...] = ()  # from the view to the frame before each move; the first is the mirrored box
    border: tuple[float, float] = (0.0, 0.0)  # parts of the image's width and height that are mirrored around it

    @property
    def moved(self) -> Matrix:
        """From the view to the mirrored box."""
        return self.frames[0] if self.frames else IDENTITY

    def move(self, step: Matrix) -> "Geometry":
        """`step`: from the new frame to the one before."""
        return replace(self, frames=move_frames(self.frames, step))

    @property
    def matrix(self) -> Matrix:
        """From the view to the image."""
        top, left, height, width = self.box
        crop = np.array([[width, 0, left], [0, height, top], [0, 0, 1]])
        return crop @ MIRROR @ self.moved if self.mirrored else crop @ self.moved

    @property
    def bordered(self) -> Matrix:
        """From the view to the image with its border."""
        x, y = self.border
        width, height = 1 + 2 * x, 1 + 2 * y
        return np.array([[1 / width, 0, x / width], [0, 1 / height, y / height], [0, 0, 1]]) @ self.matrix


@dataclass(frozen=True, eq=False)
class Tracked:
    """An image on its way to a view. To timm's geometric operations it looks like an image of Pillow's."""

    image: Any  # an image of Pillow's or a Deferred one, or a Pair of such; in the end what a `View` may have
    geometry: Geometry
    patch: Patch | None = None  # what random erasing is to put into it, drawn last

    @property
    def size(self) -> tuple[int, int]:
        return self.image.size

    def transform(self, size: tuple[int, int], method: int, data: tuple[float, ...], **how: Any) -> "Tracked":
        """`data` maps pixels of the new image to the old one: x' = a·x + b·y + c, y' = d·x + e·y + f."""
        image = self.image.transform(size, method, data, **how)
        return Tracked(image, self.geometry.move(affine_step(data, self.size)))

    def rotate(self, degrees: float, **how: Any) -> "Tracked":
        """Around its centre, counter-clockwise."""
        image = self.image.rotate(degrees, **how)
        return Tracked(image, self.geometry.move(rotation_step(degrees, self.size)))


class Pair(NamedTuple):
    """An image, and the same without changes of colours. To timm's geometric operations it looks like one image of
    Pillow's: they move both, drawn once; what changes colours sees the first alone."""

    image: Any
    spatial: Any  # the same object as long as no colour was changed

    @property
    def size(self) -> tuple[int, int]:
        return self.image.size

    def both(self, change: Callable[[Any], Any]) -> "Pair":
        changed = change(self.image)
        return Pair(changed, changed if self.spatial is self.image else change(self.spatial))

    def transform(self, *how: Any, **options: Any) -> "Pair":
        return self.both(lambda image: image.transform(*how, **options))

    def rotate(self, degrees: float, **how: Any) -> "Pair":
        return self.both(lambda image: image.rotate(degrees, **how))

    def transpose(self, method: Image.Transpose) -> "Pair":
        return self.both(lambda image: image.transpose(method))


def in_pairs(tracked: Tracked) -> Tracked:
    """From here on, the image is followed without changes of colours, too."""
    return replace(tracked, image=Pair(tracked.image, tracked.image))


def affine_step(data: tuple[float, ...], size: tuple[int, int]) -> Matrix:
    """From the new frame to the one before, for what Pillow's `Image.transform` takes."""
    (width, height), (a, b, c, d, e, f) = size, data
    return np.array([[a, b * height / width, c / width], [d * width / height, e, f / height], [0, 0, 1]])


def rotation_step(degrees: float, size: tuple[int, int]) -> Matrix:
    """The same for `Image.rotate`."""
    width, height = size
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    across, down = -sin * height / width, sin * width / height
    return np.array([[cos, across, (1 - cos - across) / 2], [down, cos, (1 - down - cos) / 2], [0, 0, 1]])


def move_frames(frames: tuple[Matrix, ...], step: Matrix) -> tuple[Matrix, ...]:
    """From the new frame to each of the earlier ones; `step`: from the new frame to the one before."""
    return (*(frame @ step for frame in frames), step)


GEOMETRIC = frozenset(
    {
        auto_augment.shear_x,
        auto_augment.shear_y,
        auto_augment.translate_x_rel,
        auto_augment.translate_y_rel,
        auto_augment.translate_x_abs,
        auto_augment.translate_y_abs,
        auto_augment.rotate,
    }
)


def follow(step: Any) -> Callable[[Tracked], Tracked]:
    """A step of timm's transforms, with the same random draws, for a tracked image."""
    if isinstance(step, RandomResizedCropAndInterpolation):
        return Crop(step)
    if isinstance(step, RandomHorizontalFlip):
        return Flip(step)
    if isinstance(step, RandomErasing):
        return Erase(step)
    if isinstance(step, auto_augment.RandAugment | auto_augment.AutoAugment):
        for operation in operations(step):  # these hand on whatever they get: the geometry travels with the image
            if operation.aug_fn not in GEOMETRIC and not isinstance(operation.aug_fn, OnImage):
                operation.aug_fn = OnImage(operation.aug_fn)
        return Chosen(step) if isinstance(step, auto_augment.RandAugment) else step
    return OnImage(step)


def operations(step: Any) -> list[Any]:
    """Those that one of timm's policies (RandAugment, AutoAugment, AugMix) draws from."""
    return [*getattr(step, "ops", []), *(one for policy in getattr(step, "policy", []) for one in policy)]


class OnImage:
    """What changes colours alone."""

    def __init__(self, step: Callable[..., Any]) -> None:
        self.step = step

    def __call__(self, tracked: Tracked, *args: Any, **options: Any) -> Tracked:
        image = tracked.image
        if isinstance(image, Pair):
            return replace(tracked, image=image._replace(image=self.step(image.image, *args, **options)))
        return Tracked(self.step(image, *args, **options), tracked.geometry, tracked.patch)


class Chosen:
    """RandAugment. Numbers are chosen, not the operations themselves, of which numpy would make an array each time."""

    def __init__(self, step: auto_augment.RandAugment) -> None:
        self.step = step

    def __call__(self, tracked: Tracked) -> Tracked:
        step, weights = self.step, self.step.choice_weights
        chosen = np.random.choice(len(step.ops), step.num_layers, replace=weights is None, p=weights)  # noqa: NPY002
        for number in chosen.tolist():
            tracked = step.ops[number](tracked)
        return tracked


class Crop:
    def __init__(self, step: RandomResizedCropAndInterpolation) -> None:
        self.step = step

    def __call__(self, tracked: Tracked) -> Tracked:
        step, (width, height) = self.step, tracked.size
        top, left, rows, columns = step.get_params(tracked.image, step.scale, step.ratio)
        image = F.resized_crop(tracked.image, top, left, rows, columns, step.size, choose_interpolation(step))
        box = (top / height, left / width, rows / height, columns / width)
        return Tracked(image, replace(tracked.geometry, box=box))


def choose_interpolation(step: RandomResizedCropAndInterpolation) -> InterpolationMode:
    return random.choice(step.interpolation) if isinstance(step.interpolation, tuple | list) else step.interpolation


class Flip:
    def __init__(self, step: RandomHorizontalFlip) -> None:
        self.step = step

    def __call__(self, tracked: Tracked) -> Tracked:
        if torch.rand(1) < self.step.p:
            image = tracked.image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            return Tracked(image, replace(tracked.geometry, mirrored=not tracked.geometry.mirrored))
        return tracked


class Erase:
    """Random erasing, drawn and not done: bytes have no place for its noise."""

    def __init__(self, step: RandomErasing) -> None:
        self.step = step

    def __call__(self, tracked: Tracked) -> Tracked:
        width, height = tracked.size
        return replace(tracked, patch=draw_patch(self.step, (3, height, width)))
