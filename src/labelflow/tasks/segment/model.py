"""A backbone and its heads: class scores for every pixel.

Shapes: B batch, K classes, H×W the image.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelflow.models import lvvit
from labelflow.tasks.dense.backbone import Levels, make_levels
from labelflow.tasks.dense.layers import Rescaled
from labelflow.tasks.dense.parts import BackboneAndHeads
from labelflow.tasks.segment.heads import FCNHead, UperHead

HEADS = ("upernet", "fcn")


class Scores(NamedTuple):
    """Of every pixel."""

    logits: Tensor  # (B, K, H, W)
    auxiliary: Tensor | None  # (B, K, H, W), of the auxiliary head; in training only


class Segmenter(BackboneAndHeads, nn.Module):
    """`segmenter(images)`: (B, 3, H, W) -> Scores, at any size."""

    backbone_name = "levels.model"

    def __init__(self, levels: Levels, head: UperHead | FCNHead, auxiliary: FCNHead, auxiliary_level: int) -> None:
        super().__init__()
        self.levels, self.head, self.auxiliary = levels, head, auxiliary
        self.auxiliary_level = auxiliary_level

    def forward(self, images: Tensor) -> Scores:
        size, strides = images.shape[2:], self.levels.strides
        if isinstance(self.head, UperHead) and not self.head.can_norm(len(images)):
            raise ValueError(
                "UperNet can't train on one image, of which its batch norm sees one pixel: give it at least two images"
            )
        maps = self.levels(images)
        if isinstance(self.head, UperHead):
            logits = enlarge(self.head(maps), strides[0], size)
        else:
            logits = enlarge(self.head(maps[-1]), strides[-1], size)
        if not self.training:
            return Scores(logits, None)
        at = self.auxiliary_level
        return Scores(logits, enlarge(self.auxiliary(maps[at]), strides[at], size))

    @torch.jit.ignore
    def no_weight_decay(self) -> set[str]:
        return {f"levels.{name}" for name in self.levels.no_weight_decay()}

    @torch.jit.ignore
    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.levels.set_grad_checkpointing(enable)


def make_segmenter(
    backbone: str = "swin_tiny_patch4_window7_224",
    head: str = "upernet",
    classes: int = 150,
    init: str = "",
    drop_path: float = 0.0,
    image_size: int = 0,
    width: int = 0,
) -> Segmenter:
    """A segmenter of the papers' sizes, which are counted at an image_size of 512. width: channels of the heads; 0: as
    published. The rest: see `make_levels`.

    With UperNet, a batch norm sees one pixel of each image: train on at least two images a process.

    >>> segmenter = make_segmenter("pvt_v2_b0", "fcn", classes=11).eval()
    >>> segmenter(torch.zeros(1, 3, 90, 120)).logits.shape
    torch.Size([1, 11, 90, 120])
    """
    if head not in HEADS:
        raise ValueError(f"there is no head {head!r}; there are {', '.join(HEADS)}")
    if classes < 2:
        raise ValueError(f"a segmenter needs at least two classes, not {classes}")
    levels = make_levels(backbone, init, drop_path, image_size, count=4 if head == "upernet" else 2)
    channels = levels.channels
    is_lvvit = isinstance(levels.model, lvvit.LVViT)
    large = is_lvvit and head == "upernet" and channels[0] >= 768  # LV-ViT-L
    auxiliary_width = width or (512 if large else 256)
    at = len(channels) - (1 if isinstance(levels.outs[-1], Rescaled) else 2)
    auxiliary = FCNHead(channels[at], classes, auxiliary_width)
    if head == "fcn":
        return Segmenter(levels, FCNHead(channels[-1], classes, width or 256, depth=2), auxiliary, at)
    head_width = auxiliary_width if is_lvvit else width or 512
    return Segmenter(levels, UperHead(channels, classes, head_width), auxiliary, at)


def enlarge(logits: Tensor, stride: float, size: Sequence[int]) -> Tensor:
    """Scores of a map whose cells are `stride` pixels wide, for the pixels of an image: without the padding."""
    height, width = size
    whole = [round(side * stride) for side in logits.shape[2:]]
    return F.interpolate(logits.float(), whole, mode="bilinear")[..., :height, :width]
