"""Windows of a map: labels roll, are padded and cut into windows as tokens are.

Shapes: B batch, h×w grid, K sources; a window of r×s places.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from labelflow import flow


def split(labels: Tensor, window: tuple[int, int]) -> Tensor:
    """(B, h, w, K) -> (B·windows, r·s, K)"""
    parts = labels.unflatten(2, (-1, window[1])).unflatten(1, (-1, window[0]))  # (B, i, r, j, s, K)
    return parts.transpose(2, 3).flatten(0, 2).flatten(1, 2)


def join(windows: Tensor, window: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """(B·windows, r·s, K) -> (B, h, w, K)"""
    count = (grid[0] // window[0], grid[1] // window[1])
    parts = windows.unflatten(0, (-1, *count)).unflatten(3, window)  # (B, i, j, r, s, K)
    return parts.transpose(2, 3).flatten(3, 4).flatten(1, 2)


def mix(labels: Tensor, window: tuple[int, int], shift: tuple[int, int], move: Callable[[Tensor], Tensor]) -> Tensor:
    """What `move` makes of the windows (B·windows, r·s, K) of a map (B, h, w, K) that is shifted, then padded."""
    height, width = labels.shape[1:3]
    shifted = flow.pad(_roll(labels, (-shift[0], -shift[1])), window)
    moved = join(move(split(shifted, window)), window, (shifted.shape[1], shifted.shape[2]))
    return _roll(moved[:, :height, :width], shift)


def _roll(labels: Tensor, shift: tuple[int, int]) -> Tensor:
    return torch.roll(labels, shift, (1, 2)) if any(shift) else labels


def mask(grid: tuple[int, int], window: tuple[int, int], shift: tuple[int, int], device: torch.device) -> Tensor:
    """What a shifted map's scores are masked with, where a window holds two edges of it: (windows, r·s, r·s)"""
    rows, columns = (
        (torch.arange(side, device=device) >= side - far).int() + (torch.arange(side, device=device) >= side - near)
        for side, far, near in zip(grid, window, shift, strict=True)
    )  # 0, 1, 2: in front of the last window, in its own part, in what came around the edge
    part = (3 * rows.unsqueeze(1) + columns).view(1, *grid, 1)
    parts = split(part, window).squeeze(-1)  # (windows, r·s)
    return -100.0 * (parts.unsqueeze(1) != parts.unsqueeze(2)).float()
