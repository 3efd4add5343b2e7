"""Batches whose images are moved, each by an affine map of its own, as Pillow's `Image.transform` does it.

Several moves of an image are one map here: it is sampled once. Shapes: images (B, 3, H, W) uint8; matrices (B, 3, 3)
for column vectors (x, y, 1), in fractions of width and height (see `geometry.py`).
"""

from functools import cache

import torch
from torch import Tensor

from labelflow.data.batched import pad_edges

SLACK = 2**-12  # what a sum in single precision may lack where in Pillow's double precision it is a whole number


def resample(images: Tensor, matrices: Tensor, frames: Tensor, fill: tuple[int, ...], cubic: Tensor) -> Tensor:
    """Views of images, within 1 of Pillow's.

    matrices: from each view to its image; frames: (B, M, 3, 3), from the view to what else it has to lie within: with
    several moves, the frames before all but the first; fill: the colour of what lies outside; cubic: (B,) bool, bicubic
    instead of bilinear.
    """
    channels, height, width = images.shape[1:]
    scale, colour = _constants(height, width, fill, images.device)
    places = _places((torch.cat([matrices[:, None], frames], 1)[:, :, :2] * scale).float(), height, width)
    inside = _inside(places, height, width)
    places = places[:, 0] - 0.5
    first = places.floor()
    weights = _weights(places - first, cubic)
    left, top = first[:, :1].clamp(-1, width - 1), first[:, 1:].clamp(-1, height - 1)
    corner = ((top + 1) * (width + 4) + left + 1).long().flatten(2).expand(-1, channels, -1)  # of 4×4 pixels
    padded = pad_edges(pad_edges(images, 2), 3).flatten(2)
    total = torch.zeros(corner.shape, device=images.device)
    for row in range(4):
        for column in range(4):
            pixels = padded[:, :, row * (width + 4) + column :].gather(2, corner)
            total.addcmul_(pixels, weights[column][:, :1] * weights[row][:, 1:])
    views = total.add_(SLACK).clamp_(0, 255).byte()  # rounded down
    return torch.where(inside, views.view(images.shape), colour)


@cache
def _constants(height: int, width: int, fill: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """What turns fractions into pixels (2, 3), and a colour (3, 1, 1). Made once for a device, as for `Normalise`."""
    scale = torch.tensor([[1, width / height, width], [height / width, 1, height]], device=device)
    return scale, torch.tensor(fill, dtype=torch.uint8, device=device).view(-1, 1, 1)


def _places(maps: Tensor, height: int, width: int) -> Tensor:
    """Where maps, (..., 2, 3), send the middles of pixels: (..., 2, H, W). Not as a product of matrices, which a GPU
    may round to TF32."""
    x = torch.arange(width, device=maps.device) + 0.5
    y = torch.arange(height, device=maps.device)[:, None] + 0.5
    by_x, by_y, shift = maps[..., None, None].unbind(-3)
    return (by_x * x + shift) + by_y * y


def _inside(places: Tensor, height: int, width: int) -> Tensor:
    """Whether places, (B, 1 + M, 2, H, W), lie within all of their frames: (B, 1, H, W)"""
    x, y = places.unbind(2)
    return ((x >= 0) & (x < width) & (y >= 0) & (y < height)).all(1)[:, None]


def _weights(part: Tensor, cubic: Tensor) -> list[Tensor]:
    """How much each of four pixels in a row counts, and in a column, for a place between the second and the third:
    (B, 2, H·W) each. Pillow's bicubic has a = -1 here, where torch has -0.75, and Pillow's `resize` -0.5.

    part: (B, 2, H, W), of the way from the second pixel to the third
    """
    part = part.flatten(2)
    rest = 1 - part
    bend = part * rest * cubic[:, None, None]  # 0: bilinear
    near, far = bend * rest, bend * part
    return [-near, rest + near, part + far, -far]
