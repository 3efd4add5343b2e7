"""`--augment device`: workers decode, crop and draw what else is to be done with an image; the device does it, batched.

timm's own transforms draw, from the same numbers as ever, so that a view is the same as without `--augment device`, but
for what rounding does to pixels: crops are resized by torch, of large images at a reduced size, and moves that follow
one another (rotations, shears, translations) sample the image once.

Shapes: B batch, M moves.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy import ndarray
from PIL import Image
from timm.data import auto_augment
from timm.data.transforms import RandomResizedCropAndInterpolation
from torch import Tensor
from torchvision.transforms import ColorJitter

from labelflow.data import batched
from labelflow.data.geometry import (
    GEOMETRIC,
    Geometry,
    Matrix,
    Tracked,
    affine_step,
    choose_interpolation,
    move_frames,
    operations,
    rotation_step,
)
from labelflow.data.images import is_on_its_side, to_rgb
from labelflow.data.resampling import resample

SPARE = 2  # times as many pixels as the view has, across and down, that a crop must keep when it is reduced


class Step(NamedTuple):
    """A change of colours."""

    kind: str  # of OPERATIONS
    numbers: Sequence[float] | ndarray = ()


class Move(NamedTuple):
    """One or more moves, one after the other."""

    frames: tuple[Matrix, ...]  # from the view to the frame before each move
    cubic: bool


class Deferred(NamedTuple):
    """To timm's operations it looks like an image of Pillow's; it records what is to be done."""

    pixels: Tensor  # (3, H, W) uint8
    mirrored: bool = False  # before all steps
    steps: tuple[Step | Move, ...] = ()

    @property
    def size(self) -> tuple[int, int]:
        return self.pixels.shape[2], self.pixels.shape[1]

    def then(self, step: Step | Move) -> "Deferred":
        return self._replace(steps=(*self.steps, step))

    def transpose(self, method: Image.Transpose) -> "Deferred":
        assert method == Image.Transpose.FLIP_LEFT_RIGHT
        assert not self.steps
        return self._replace(mirrored=not self.mirrored)

    def transform(
        self, size: tuple[int, int], method: int, data: tuple[float, ...], resample: int, fillcolor: object
    ) -> "Deferred":
        return self._move(affine_step(data, self.size), resample)

    def rotate(self, degrees: float, resample: int, fillcolor: object) -> "Deferred":
        return self._move(rotation_step(degrees, self.size), resample)

    def filter(self, blur: Any) -> "Deferred":
        return self.then(Step("blur", batched.blur_weights(blur.radius)))

    def _move(self, step: Matrix, resample: int) -> "Deferred":
        cubic = resample == Image.Resampling.BICUBIC
        if self.steps and isinstance(last := self.steps[-1], Move):
            return self._replace(steps=(*self.steps[:-1], Move(move_frames(last.frames, step), cubic or last.cubic)))
        return self.then(Move((step,), cubic))


# ---- in a worker: what timm draws is recorded


def defer(step: Any) -> Any:
    """A step of timm's transforms that records what it would do to colours."""
    if isinstance(step, ColorJitter):
        return Jitter(step)
    for operation in operations(step):
        if operation.aug_fn not in ASK_THE_IMAGE:
            operation.aug_fn = partial(record, operation.aug_fn)
    return step


def record(change: Callable[..., Image.Image], image: Deferred, *arguments: float, **unused: Any) -> Deferred:
    """One of timm's changes of colours."""
    step = STEPS[change](*arguments) if change in STEPS else _table_step(change, *arguments)
    return image.then(step)


@lru_cache(maxsize=4096)
def _table_step(change: Callable[..., Image.Image], *arguments: float) -> Step:
    """Of a change that looks at single bytes."""
    return Step("table", batched.table(change, *arguments))


ASK_THE_IMAGE = GEOMETRIC | {auto_augment.gaussian_blur, auto_augment.gaussian_blur_rand}  # by its methods
STEPS: dict[Callable[..., Image.Image], Callable[..., Step]] = {
    auto_augment.auto_contrast: lambda: Step("autocontrast"),
    auto_augment.equalize: lambda: Step("equalize"),
    auto_augment.contrast: lambda factor: Step("contrast", (factor,)),
    auto_augment.color: lambda factor: Step("saturation", (factor,)),
    auto_augment.desaturate: lambda factor: Step("saturation", (min(1.0, max(0.0, 1.0 - factor)),)),
    auto_augment.sharpness: lambda factor: Step("sharpness", (factor,)),
}


class Jitter:
    """torchvision's colour jitter, recorded."""

    def __init__(self, step: ColorJitter) -> None:
        self.step = step

    def __call__(self, image: Deferred) -> Deferred:
        step = self.step
        order, *factors = step.get_params(step.brightness, step.contrast, step.saturation, step.hue)
        changes = (auto_augment.brightness, auto_augment.contrast, auto_augment.color)
        for place in order.tolist():
            if factors[place] is not None:
                image = record(changes[place], image, factors[place])
        return image


class DecodedCrop:
    """timm's random crop of an image that is not decoded yet: if it is a JPEG and the crop much larger than the view,
    at a half, a quarter or an eighth of its size. It is not resized."""

    def __init__(self, step: RandomResizedCropAndInterpolation) -> None:
        self.step = step

    def __call__(self, image: Image.Image) -> Tracked:
        step, turned = self.step, is_on_its_side(image)
        width, height = image.size[::-1] if turned else image.size
        top, left, rows, columns = step.get_params(torch.empty(height, width, device="meta"), step.scale, step.ratio)
        rows, columns = max(1, rows), max(1, columns)  # of tiny images, timm draws crops without pixels
        top, left = min(top, height - rows), min(left, width - columns)
        enough = math.ceil(SPARE * width * step.size[1] / columns), math.ceil(SPARE * height * step.size[0] / rows)
        image.draft(None, enough[::-1] if turned else enough)
        image = to_rgb(image)
        x, y = image.width / width, image.height / height  # 1, if it was not reduced
        left, top, right, bottom = round(left * x), round(top * y), round((left + columns) * x), round((top + rows) * y)
        box = (top / image.height, left / image.width, (bottom - top) / image.height, (right - left) / image.width)
        return Tracked(image.crop((left, top, right, bottom)), Geometry((width, height), box))


class Resize:
    """A crop as a deferred image, resized by torch, which is three times as fast as Pillow."""

    def __init__(self, step: RandomResizedCropAndInterpolation) -> None:
        self.step = step

    def __call__(self, tracked: Tracked) -> Tracked:
        pixels = torch.from_numpy(np.array(tracked.image)).permute(2, 0, 1)
        how = choose_interpolation(self.step)
        return Tracked(
            Deferred(F.interpolate(pixels[None], self.step.size, mode=how.value, antialias=True)[0]), tracked.geometry
        )


# ---- on the device


class Group(NamedTuple):
    """Images of a batch with which the same is done at once."""

    kind: str  # of OPERATIONS
    images: int
    width: int  # numbers of each image


class Plan(NamedTuple):
    """What is to be done with a batch, in few tensors, since each costs a worker time."""

    groups: list[Group]
    places: Tensor  # (Σ images,) in the batch
    numbers: Tensor  # (Σ images·width,) float32
    mirrored: Tensor  # (B,) bool

    @staticmethod
    def stack(images: Sequence[Deferred]) -> "Plan":
        groups: list[Group] = []
        places: list[int] = []
        numbers: list[ndarray] = []
        for number in range(max(len(image.steps) for image in images)):
            steps = {place: image.steps[number] for place, image in enumerate(images) if number < len(image.steps)}
            for kind in dict.fromkeys(map(_kind, steps.values())):
                own = {place: step for place, step in steps.items() if _kind(step) == kind}
                rows = _rows(list(own.values()))
                groups.append(Group(kind, *rows.shape))
                places += own
                numbers.append(rows.ravel())
        flat = np.concatenate([np.empty(0), *numbers]).astype(np.float32)
        mirrored = torch.tensor([image.mirrored for image in images])
        return Plan(groups, torch.tensor(places, dtype=torch.long), torch.from_numpy(flat), mirrored)

    def to(self, device: torch.device) -> "Plan":
        return Plan(self.groups, *(part.to(device, non_blocking=True) for part in self[1:]))

    def apply(self, images: Tensor, fill: tuple[int, ...]) -> Tensor:
        """To images (B, 3, H, W) uint8. fill: the colour of what moves leave empty."""
        images = batched.flip(images, self.mirrored)
        places = self.places.split([group.images for group in self.groups])
        numbers = self.numbers.split([group.images * group.width for group in self.groups])
        for group, place, flat in zip(self.groups, places, numbers, strict=True):
            rows = flat.view(group.images, group.width)
            images.index_copy_(0, place, OPERATIONS[group.kind](images.index_select(0, place), rows, fill))
        return images


def _kind(step: Step | Move) -> str:
    return step.kind if isinstance(step, Step) else "move"


def _rows(steps: Sequence[Step | Move]) -> ndarray:
    """The numbers of steps of one kind, (images, width); moves: whether it is bicubic, and M matrices."""
    most = max(len(step.frames) if isinstance(step, Move) else 0 for step in steps)
    return np.array([_move_numbers(step, most) if isinstance(step, Move) else step.numbers for step in steps])


def _move_numbers(move: Move, most: int) -> list[float]:
    missing = [move.frames[0]] * (most - len(move.frames))  # as many for all; a frame twice makes no difference
    return [float(move.cubic), *np.stack([*move.frames, *missing]).ravel()]


def _move(images: Tensor, rows: Tensor, fill: tuple[int, ...]) -> Tensor:
    frames = rows[:, 1:].view(len(rows), -1, 3, 3)
    return resample(images, frames[:, 0], frames[:, 1:], fill, rows[:, 0] > 0)


OPERATIONS: dict[str, Callable[[Tensor, Tensor, Any], Tensor]] = {
    "table": lambda images, rows, fill: batched.apply_tables(images, rows.byte()),
    "autocontrast": lambda images, rows, fill: batched.apply_tables(images, batched.autocontrast_tables(images)),
    "equalize": lambda images, rows, fill: batched.apply_tables(images, batched.equalize_tables(images)),
    "contrast": lambda images, rows, fill: batched.apply_tables(images, batched.contrast_tables(images, rows[:, 0])),
    "saturation": lambda images, rows, fill: batched.adjust_saturation(images, rows[:, 0]),
    "sharpness": lambda images, rows, fill: batched.adjust_sharpness(images, rows[:, 0]),
    "blur": lambda images, rows, fill: batched.gaussian_blur(images, rows.int()),
    "move": _move,
}
