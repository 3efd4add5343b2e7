"""Heads that make class scores of maps: UperNet (Xiao et al., ECCV 2018) and FCN (Long et al., CVPR 2015).

Their norms are BatchNorm2d; in a run on several GPUs, with the statistics of all (`tasks/dense/task.py`). Shapes: B
batch, K classes, h×w a map.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelflow.tasks.dense.layers import conv_norm, kaiming

POOLS = (1, 2, 3, 6)


class UperHead(nn.Module):
    """All levels, the finest first, to scores at the finest: [(B, channels[i], h_i, w_i)] -> (B, K, h_0, w_0).

    The coarsest level is pooled to several sizes (PPM), each level takes over from the coarser ones (FPN), and all
    are fused.
    """

    def __init__(self, channels: Sequence[int], classes: int, width: int = 512, dropout: float = 0.1) -> None:
        super().__init__()
        *finer, last = channels
        self.pools = nn.ModuleList(nn.Sequential(nn.AdaptiveAvgPool2d(n), conv_norm(last, width, 1)) for n in POOLS)
        self.pooled = conv_norm(last + len(POOLS) * width, width, 3)
        self.laterals = nn.ModuleList(conv_norm(channel, width, 1) for channel in finer)
        self.smooth = nn.ModuleList(conv_norm(width, width, 3) for _ in finer)
        self.fuse = conv_norm(len(channels) * width, width, 3)
        kaiming(self)
        self.classify = classifier(width, classes, dropout)

    def forward(self, levels: Sequence[Tensor]) -> Tensor:
        *finer, last = levels
        pools = [resize(pool(last), last) for pool in self.pools]
        ladder = [self.pooled(torch.cat([last, *pools], 1))]  # the coarsest first
        for lateral, level in zip(reversed(self.laterals), reversed(finer), strict=True):
            own = lateral(level)
            ladder.append(own + resize(ladder[-1], own))
        coarsest, *rest = ladder
        maps = [smooth(level) for smooth, level in zip(self.smooth, reversed(rest), strict=True)] + [coarsest]
        return self.classify(self.fuse(torch.cat([resize(one, maps[0]) for one in maps], 1)))

    def can_norm(self, images: int) -> bool:
        """Whether its norms, which see one pixel of each image, can work on a batch: in training, one image has no
        spread, unless other processes have more."""
        return images > 1 or not any(isinstance(one, nn.BatchNorm2d) and one.training for one in self.pools.modules())


class FCNHead(nn.Module):
    """A few 3×3 convolutions on one level: (B, channels, h, w) -> (B, K, h, w)."""

    def __init__(self, channels: int, classes: int, width: int = 256, depth: int = 1, dropout: float = 0.1) -> None:
        super().__init__()
        widths = [channels] + [width] * depth
        self.convs = kaiming(nn.Sequential(*(conv_norm(before, after, 3) for before, after in pairwise(widths))))
        self.classify = classifier(width, classes, dropout)

    def forward(self, level: Tensor) -> Tensor:
        return self.classify(self.convs(level))


def classifier(width: int, classes: int, dropout: float) -> nn.Sequential:
    scores = nn.Conv2d(width, classes, 1)
    nn.init.normal_(scores.weight, std=0.01)
    nn.init.zeros_(scores.bias)  # type: ignore[arg-type]
    return nn.Sequential(nn.Dropout2d(dropout), scores)


def resize(maps: Tensor, like: Tensor) -> Tensor:
    """Bilinearly, to the size of another map."""
    return F.interpolate(maps, like.shape[2:], mode="bilinear")
