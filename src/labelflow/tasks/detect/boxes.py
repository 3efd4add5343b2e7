"""Boxes: which truth each of them belongs to, and what a head's prediction makes of them.

A box is left, top, right, bottom in pixels, half-open. Shapes: R boxes, T true boxes, C classes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torchvision.models.detection._utils import BalancedPositiveNegativeSampler, BoxCoder, Matcher
from torchvision.ops import box_iou, clip_boxes_to_image

Size = tuple[int, int]  # height and width


@dataclass(frozen=True, eq=False)
class SampledBoxes:
    """The boxes of an image that a stage is trained on."""

    boxes: Tensor  # (R, 4)
    match: Tensor  # (R,) int64: the true box that each stands for, -1 for none
    added: Tensor  # (R,) bool: a true box itself, which no network has proposed

    @property
    def matched(self) -> Tensor:
        """The boxes that stand for a true one, by their numbers: (P,)"""
        return torch.where(self.match >= 0)[0]

    def classes(self, labels: Tensor, background: int) -> Tensor:
        """The class of each box, from those of the true ones: (T,) -> (R,)"""
        classes = self.match.new_full(self.match.shape, background)
        classes[self.matched] = labels[self.match[self.matched]]
        return classes


def assign(boxes: Tensor, truth: Tensor, iou: float) -> Tensor:
    """The true box that each box overlaps most, -1 where their IoU is less than `iou`: (R, 4), (T, 4) -> (R,)

    >>> boxes = torch.tensor([[0.0, 0, 4, 4], [0, 0, 4, 9]])
    >>> assign(boxes, torch.tensor([[9.0, 9, 12, 12], [0, 0, 4, 5]]), iou=0.6)
    tensor([ 1, -1])
    """
    if not len(truth) or not len(boxes):
        return boxes.new_full((len(boxes),), -1, dtype=torch.int64)
    return Matcher(iou, iou)(box_iou(truth, boxes))


def sample_boxes(boxes: Tensor, truth: Tensor, iou: float, count: int, positive: float) -> SampledBoxes:
    """At most `count` boxes of an image, among them the true ones, and at most a part of them that match one."""
    boxes = torch.cat([boxes, truth])
    match = assign(boxes, truth, iou)
    added = torch.arange(len(boxes), device=boxes.device) >= len(boxes) - len(truth)
    [matched], [unmatched] = BalancedPositiveNegativeSampler(count, positive)([match + 1])
    chosen = torch.where(matched | unmatched)[0]
    return SampledBoxes(boxes[chosen], match[chosen], added[chosen])


def coder(std: tuple[float, float, float, float]) -> BoxCoder:
    """Shifts of the centre in box sides, and logarithms of scales, in units of their standard deviations."""
    x, y, width, height = std
    return BoxCoder((1 / x, 1 / y, 1 / width, 1 / height))


def refine(boxes: Tensor, deltas: Tensor, classes: Tensor, code: BoxCoder) -> Tensor:
    """Each box as its own class would have it: (R, 4), deltas (R, C, 4), classes (R,) -> (R, 4)"""
    return code.decode_single(deltas[torch.arange(len(classes), device=classes.device), classes], boxes)


def refine_all(boxes: Tensor, deltas: Tensor, code: BoxCoder, size: Size) -> Tensor:
    """Each box as every class would have it, within an image: (R, 4), deltas (R, C, 4) -> (R, C, 4)"""
    refined = code.decode_single(deltas.flatten(1), boxes).unflatten(1, (deltas.shape[1], 4))
    return clip_boxes_to_image(refined, size)
