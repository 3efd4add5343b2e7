"""Random erasing: drawn where a view is made, done where the images are.

Shapes: B images, h×w pixels of a patch.
"""

import random
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from timm.data.random_erasing import RandomErasing
from torch import Tensor

NOISE = 2**20  # normal numbers that all patches are taken from; more, where a patch is large


class Patch(NamedTuple):
    """A part of an image that noise takes the place of."""

    top: int
    left: int
    height: int
    width: int
    noise: float  # where its noise begins, as a part of all there is


class Patches(NamedTuple):
    """The patches of a batch."""

    found: list[tuple[int, Patch]]  # which image has which

    @staticmethod
    def stack(patches: Sequence[Patch | None]) -> "Patches":
        """Of one image after the other, None where nothing is erased."""
        return Patches([(image, patch) for image, patch in enumerate(patches) if patch])

    def paint(self, images: Tensor) -> None:
        """Put them into normalised images (B, 3, H, W)."""
        for image, (top, left, height, width, start) in self.found:
            count = 3 * height * width
            noise = normal_noise(max(NOISE, 1 << (2 * count).bit_length()), images.device)
            first = int(start * (len(noise) - count))
            part = noise[first : first + count].view(3, height, width)
            images[image, :, top : top + height, left : left + width] = part


@cache
def normal_noise(count: int, device: torch.device) -> Tensor:
    """Drawn once and for all, the same for every device: a patch's noise costs workers, and what they send, nothing."""
    return torch.randn(count, generator=torch.Generator().manual_seed(0)).to(device)


class Canvas:
    """To timm's RandomErasing it looks like an image (3, H, W); it takes down what is painted on it."""

    dtype = torch.float32

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.patch: Patch | None = None

    def size(self) -> tuple[int, ...]:
        return self.shape

    def __setitem__(self, part: tuple[slice, slice, slice], colour: object) -> None:
        _, rows, columns = part
        height, width = rows.stop - rows.start, columns.stop - columns.start
        self.patch = Patch(rows.start, columns.start, height, width, random.random())


def draw_patch(erasing: RandomErasing, shape: tuple[int, ...]) -> Patch | None:
    """With timm's own draws, for an image (3, H, W); None if it is left as it is."""
    canvas = Canvas(shape)
    erasing(canvas)
    return canvas.patch
