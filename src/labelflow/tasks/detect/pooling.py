"""What lies in a box: features from the level of its size, true masks; and masks put back into the image.

Shapes: R boxes, N detections, T true boxes, D channels, S side of what is cut out.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.ops import box_area, roi_align

from labelflow.tasks.detect.boxes import Size

STRIDES = 4, 8, 16, 32  # of the levels
FINEST = 56  # the side of a box, in pixels, below twice of which the finest level is used


def level_of(boxes: Tensor) -> Tensor:
    """The level of each box, by its size: (R, 4) -> (R,) int64

    >>> level_of(torch.tensor([[0.0, 0, 100, 100], [0, 0, 112, 112], [0, 0, 900, 900]]))
    tensor([0, 1, 3])
    """
    level = (box_area(boxes).sqrt() / FINEST + 1e-6).log2().floor()
    return level.clamp(0, len(STRIDES) - 1).long()


def cut(features: list[Tensor], boxes: list[Tensor], side: int) -> Tensor:
    """The features in the boxes of each image: levels (B, D, H, W), B × (R, 4) -> (sum of R, D, S, S), float32"""
    images = torch.cat([torch.full_like(own[:, :1], number) for number, own in enumerate(boxes)])
    regions = torch.cat([images, torch.cat(boxes)], 1)  # (sum of R, 5)
    levels = level_of(regions[:, 1:])
    pieces = regions.new_zeros(len(regions), features[0].shape[1], side, side)
    for level, stride in enumerate(STRIDES):
        here = torch.where(levels == level)[0]
        pieces[here] = roi_align(features[level].float(), regions[here], side, 1 / stride, aligned=True)
    return pieces


def cut_masks(masks: Tensor, boxes: Tensor, match: Tensor, side: int) -> Tensor:
    """The part of a true mask in each box: (T, H, W), (R, 4), (R,) -> (R, S, S) of 0 and 1, float32"""
    regions = torch.cat([match[:, None].to(boxes), boxes], 1)
    return (roi_align(masks[:, None].float(), regions, side, aligned=True)[:, 0] >= 0.5).float()


def paste(masks: Tensor, boxes: Tensor, size: Size) -> Tensor:
    """Masks where their boxes are: (N, S, S) of shares, (N, 4) -> (N, H, W) bool, true above one half"""
    height, width = size
    pasted = torch.zeros(len(masks), height, width, dtype=torch.bool, device=masks.device)
    for number, (left, top, right, bottom) in enumerate(boxes.tolist()):
        rows = slice(max(0, int(top)), min(height, int(bottom) + 1))
        columns = slice(max(0, int(left)), min(width, int(right) + 1))
        if rows.start >= rows.stop or columns.start >= columns.stop:
            continue
        y, x = _places(rows, top, bottom, masks), _places(columns, left, right, masks)
        grid = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)  # (h, w, 2)
        window = F.grid_sample(masks[None, number : number + 1], grid[None], align_corners=False)[0, 0]
        pasted[number, rows, columns] = window > 0.5
    return pasted


def _places(pixels: slice, start: float, end: float, like: Tensor) -> Tensor:
    """Where the middles of pixels are between two sides of a box, -1 to 1."""
    middles = torch.arange(pixels.start, pixels.stop, dtype=like.dtype, device=like.device) + 0.5
    return 2 * (middles - start) / max(end - start, 1e-6) - 1
