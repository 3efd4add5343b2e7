"""What dense models are made of between backbone and head: sizes, convolutions, and necks, which make maps at several
strides of a plain ViT's tokens.

A neck has one layer for each level, the channels that come out, and how much finer than the tokens' grid its maps are.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import torch.nn.functional as F
from torch import Tensor, nn

Module = TypeVar("Module", bound=nn.Module)


def fit(size: tuple[int, int], short: int, long: int, scale: float = 1.0) -> tuple[int, int]:
    """The size at which (H, W) fits into short × long, times a scale, with its aspect ratio.

    >>> fit((240, 320), 512, 2048), fit((100, 800), 512, 2048), fit((240, 320), 512, 2048, scale=0.5)
    ((512, 683), (256, 2048), (256, 341))
    """
    factor = scale * min(short / min(size), long / max(size))
    return max(1, int(size[0] * factor + 0.5)), max(1, int(size[1] * factor + 0.5))


def conv_norm(channels: int, out: int, kernel: int) -> nn.Sequential:
    conv = nn.Conv2d(channels, out, kernel, padding=kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out), nn.ReLU(inplace=True))


def kaiming(module: Module) -> Module:
    """The module, its convolutions started anew."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return module


class Neck(NamedTuple):
    layers: Sequence[nn.Module]
    channels: list[int]
    scales: list[float]


class Rescaled(nn.Module):
    """A 1×1 convolution, a bilinear resize, a 3×3 convolution: (B, C, h, w) -> (B, C, scale·h, scale·w)."""

    def __init__(self, width: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.point = nn.Conv2d(width, width, 1)
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        for layer in (self.point, self.conv):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        x = self.point(x)
        if self.scale != 1:
            size = [math.ceil(side * self.scale) for side in x.shape[2:]]
            x = F.interpolate(x, size, mode="bilinear")
        return self.conv(x)


def multi_level_neck(width: int) -> Neck:
    """For DeiT and other ViTs: the tokens' grid ×4, ×2, ×1, ×½."""
    scales = [4, 2, 1, 0.5]
    return Neck([Rescaled(width, scale) for scale in scales], [width] * 4, scales)


def side_layers(width: int, out: int = 2048) -> Neck:
    """LV-ViT's: ×4, ×2, ×1, and ×1 again with more channels."""
    layers = [_side(width, width, 4), _side(width, width, 2), _side(width, width), _side(width, out)]
    return Neck(layers, [width] * 3 + [out], [4, 2, 1, 1])


def fcn_side_layers(width: int, out: int = 768) -> Neck:
    """LV-ViT's for an FCN, which has two levels: ×1 for the auxiliary head, ×2 for the head."""
    return Neck([_side(width, width), _side(width, out, 2)], [width, out], [1, 2])


def _side(width: int, out: int, scale: int = 1) -> nn.Sequential:
    """Enlarged by a transposed convolution, then a 1×1 convolution; batch norm and ReLU after each."""
    enlarge: list[nn.Module] = []
    if scale > 1:
        deconv = nn.ConvTranspose2d(width, width, scale, scale, bias=False)
        enlarge = [deconv, nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
    return kaiming(nn.Sequential(*enlarge, conv_norm(width, out, 1)))
