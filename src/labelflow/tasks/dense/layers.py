"""Convolutions of necks and heads."""

from typing import TypeVar

from torch import nn

Module = TypeVar("Module", bound=nn.Module)


def conv_norm(channels: int, out: int, kernel: int) -> nn.Sequential:
    conv = nn.Conv2d(channels, out, kernel, padding=kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out), nn.ReLU(inplace=True))


def kaiming(module: Module) -> Module:
    """The module, its convolutions started anew."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return module
