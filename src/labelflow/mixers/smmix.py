"""SMMix (Chen et al., ICCV 2023): what the partner's tokens look at most covers what one's own look at least.

Shapes: B batch, H×W pixels, h×w cells.
"""

import math

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from labelflow.mix import Mix
from labelflow.mixers.base import (
    Pairing,
    check_images,
    check_importance,
    check_pairing,
    draw_uniform,
    partners,
)


class SMMix:
    """The partner's r×r window of the largest importance is moved onto the own window of the smallest; λ = 1 - r²/hw.
    The side r is drawn for the batch, the windows are each image's. Its target is `sm_mix`.

    Cells are those of the importance; where they do not divide the image, the next fewer that do.

    low, high: the window's side lies between these parts of the grid's shorter side, rounded down, but not below 1.
    pairing: "flip" pairs the first image with the last, "permute" at random.

    >>> mix = SMMix()(torch.rand(8, 3, 224, 224), importance=torch.rand(8, 14, 14))
    >>> mix.sources.shape
    torch.Size([8, 2, 14, 14])
    """

    guide = "attention"

    def __init__(self, *, low: float = 0.25, high: float = 0.75, pairing: Pairing = "flip") -> None:
        if not 0 <= low <= high <= 1:
            raise ValueError(f"low and high must be parts of the grid's side, 0 <= low <= high <= 1, not {low}, {high}")
        self.low, self.high = low, high
        self.pairing = check_pairing(pairing)

    def __call__(self, images: Tensor, generator: Generator | None = None, *, importance: Tensor) -> Mix:
        batch, height, width = check_images(images, generator)
        importance = check_importance(importance, images)
        grid = _cells(height, importance.shape[1]), _cells(width, importance.shape[2])
        importance = F.adaptive_avg_pool2d(importance.unsqueeze(1), grid)  # (B, 1, h, w)
        partner = partners(self.pairing, batch, images.device, generator)
        side = self._side(min(grid), generator)
        seen = F.avg_pool2d(importance, side, stride=1, divisor_override=1).squeeze(1)  # (B, h-r+1, w-r+1)
        top, left = _first(-seen)  # (B,) each
        from_top, from_left = _first(seen[partner])
        row, column = torch.arange(grid[0], device=images.device), torch.arange(grid[1], device=images.device)
        inside = _within(row, top, side).unsqueeze(2) & _within(column, left, side).unsqueeze(1)  # (B, h, w)
        place = row.unsqueeze(1) * grid[1] + column  # (h, w)
        shift = (from_top - top) * grid[1] + from_left - left  # (B,), in places counted row by row
        moved = place + inside * shift.reshape(-1, 1, 1)
        share = (~inside).float().repeat_interleave(height // grid[0], 1).repeat_interleave(width // grid[1], 2)
        return Mix(partner, share.unsqueeze(1), sources=torch.stack([place.expand_as(moved), moved], 1))

    def _side(self, cells: int, generator: Generator | None) -> int:
        """Of the windows, in cells, on a grid of which the shorter side has so many."""
        low, high = (max(1, math.floor(part * cells)) for part in (self.low, self.high))
        return low + int(draw_uniform((1,), generator) * (high - low + 1))


def _cells(side: int, most: int) -> int:
    """Into how many cells of whole pixels an image's side divides: as many as wanted, or the next fewer."""
    return next(cells for cells in range(min(side, most), 0, -1) if side % cells == 0)


def _first(values: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column of the largest value, the first one where there are several: (B, i, j) -> (B,), (B,)"""
    place = values.flatten(1).argmax(1)
    return place // values.shape[2], place % values.shape[2]


def _within(place: Tensor, start: Tensor, length: int) -> Tensor:
    """Places (N,) that lie in each interval, which starts at (B,): (B, N)"""
    start = start.unsqueeze(1)
    return (place >= start) & (place < start + length)
