"""Random erasing: drawn where a view is made, done where the images are.

Shapes: B images, h×w pixels of a patch.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from timm.data.random_erasing import RandomErasing
from torch import Tensor


class Patch(NamedTuple):
    """What takes the place of a part of an image."""

    top: int
    left: int
    noise: Tensor  # (3, h, w), in the colours of a normalised image


class Box(NamedTuple):
    """Where a patch goes."""

    image: int
    top: int
    left: int
    height: int
    width: int


class Patches(NamedTuple):
    """The patches of a batch, in one piece."""

    boxes: list[Box]
    noise: Tensor  # (Σ 3·h·w,)

    @staticmethod
    def stack(patches: Sequence[Patch | None]) -> "Patches":
        """Of one image after the other, None where nothing is erased."""
        found = [(image, patch) for image, patch in enumerate(patches) if patch]
        boxes = [Box(image, patch.top, patch.left, *patch.noise.shape[1:]) for image, patch in found]
        return Patches(boxes, torch.cat([torch.empty(0), *(patch.noise.flatten() for _, patch in found)]))

    def to(self, device: torch.device) -> "Patches":
        return self._replace(noise=self.noise.to(device, non_blocking=True))

    def paint(self, images: Tensor) -> None:
        """Put them into normalised images (B, 3, H, W)."""
        parts = self.noise.split([3 * box.height * box.width for box in self.boxes])
        for (image, top, left, height, width), part in zip(self.boxes, parts, strict=True):
            images[image, :, top : top + height, left : left + width] = part.view(3, height, width)


class Canvas:
    """To timm's RandomErasing it looks like an image (3, H, W); it takes down what is painted on it."""

    dtype = torch.float32

    def __init__(self, shape: torch.Size) -> None:
        self.shape = shape
        self.patch: Patch | None = None

    def size(self) -> torch.Size:
        return self.shape

    def __setitem__(self, part: tuple[slice, slice, slice], noise: Tensor) -> None:
        self.patch = Patch(part[1].start, part[2].start, noise)


def draw_patch(erasing: RandomErasing, shape: torch.Size) -> Patch | None:
    """With timm's own draws, for an image (3, H, W); None if it is left as it is."""
    canvas = Canvas(shape)
    erasing(canvas)
    return canvas.patch
