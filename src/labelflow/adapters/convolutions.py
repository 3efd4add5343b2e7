"""Convolutions and pools as modules: with their paddings, standardised kernels and strides.

Shapes: B batch, h×w a map, K sources. `still` is what is left of a module where `layers=` leaves its block out: nothing
of what keeps the grid, and the plain mean of its windows of what does not.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from timm import layers
from timm.layers.pool2d_same import AvgPool2dSame, MaxPool2dSame
from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters.registry import Observed, Tap, register
from labelflow.flow import Labels


def convolve(
    module: nn.Conv2d | layers.CondConv2d, labels: Tensor, still: bool, kernel: Tensor | None = None
) -> Tensor:
    """With the module's own kernel, or another one of its size."""
    if getattr(module, "padding_mode", "zeros") != "zeros":
        raise ValueError(f"labelflow follows convolutions that are padded with zeros, not {module.padding_mode!r}")
    size, stride, dilation = (pair(sides) for sides in (module.kernel_size, module.stride, module.dilation))
    dynamic = getattr(module, "same_pad", False) or getattr(module, "dynamic_padding", False)
    padded, padding = labels, (0, 0)
    if isinstance(module, layers.Conv2dSame) or dynamic or module.padding == "same":
        padded = _pad_same(labels, size, stride, dilation)
    elif module.padding != "valid":
        padding = pair(module.padding)
    if still:
        if dilation == (1, 1):
            merged = flow.aggregate(padded, size, stride, padding)
        else:
            merged = flow.convolve(labels.new_ones(1, 1, *size), padded, stride, padding, dilation)
        return labels if merged.shape == labels.shape else merged
    return flow.convolve(kernel_of(module) if kernel is None else kernel, padded, stride, padding, dilation)


STANDARDISED = (layers.StdConv2d, layers.StdConv2dSame, layers.ScaledStdConv2d, layers.ScaledStdConv2dSame)


def kernel_of(module: nn.Conv2d) -> Tensor:
    """The kernel that a convolution really uses, up to the scales of its output channels, which Norm takes out."""
    if isinstance(module, STANDARDISED):
        weight = module.weight.float()
        return weight - weight.mean((1, 2, 3), keepdim=True)
    return module.weight


def pool(module: nn.AvgPool2d | nn.MaxPool2d, labels: Tensor, still: bool) -> Tensor:
    if getattr(module, "dilation", 1) not in (1, (1, 1), [1, 1]):
        raise ValueError(f"labelflow follows pools without holes, not {module}")
    size, stride, padding = (pair(sides) for sides in (module.kernel_size, module.stride, module.padding))
    padded = labels
    if isinstance(module, AvgPool2dSame | MaxPool2dSame):
        padded, padding = _pad_same(labels, size, stride, (1, 1)), (0, 0)
    merged = flow.aggregate(padded, size, stride, padding, module.ceil_mode)
    return labels if still and merged.shape == labels.shape else merged


def blur(module: layers.BlurPool2d, labels: Tensor, still: bool) -> Tensor:
    padded = F.pad(labels.permute(0, 3, 1, 2), module.padding, mode=module.pad_mode).permute(0, 2, 3, 1)
    blurred = flow.convolve(module.filt[:1], padded, pair(module.stride), (0, 0))
    return labels if still and blurred.shape == labels.shape else blurred


def surround(module: nn.ConstantPad2d, labels: Tensor, still: bool) -> Tensor:
    return F.pad(labels, (0, 0, *module.padding))  # without a label


def unshuffle(module: layers.SpaceToDepth, labels: Tensor, still: bool) -> Tensor:
    return flow.aggregate(labels, pair(module.bs))


def pair(sides: Any) -> tuple[int, int]:
    return (sides[0], sides[-1]) if isinstance(sides, Sequence) else (sides, sides)


def _pad_same(labels: Tensor, size: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int]) -> Tensor:
    """TensorFlow's padding: places without a label, one more below and to the right if their number is odd."""
    return layers.pad_same(labels.permute(0, 3, 1, 2), size, stride, dilation).permute(0, 2, 3, 1)


@register(nn.Conv2d, layers.Conv2dSame, *STANDARDISED, layer=False)
def move_convolution(module: nn.Conv2d, observed: Observed, labels: Labels) -> Labels:
    """A convolution on a model's own path, in its stem or between stages: with a stride it is taken as aggregation."""
    return labels.with_map(convolve(module, labels.map, still=module.stride != (1, 1)))


def _idle_conditional(module: layers.CondConv2d, observed: Observed, labels: Labels) -> Labels:
    return labels.with_map(convolve(module, labels.map, still=True))


@register(
    layers.CondConv2d,
    taps=lambda module: {"routing": Tap(module, "routing_weights")},  # (B, experts)
    layer=False,
    idle=_idle_conditional,
)
def move_conditional(module: layers.CondConv2d, observed: Observed, labels: Labels) -> Labels:
    """Each image has a kernel of its own, a mixture of experts."""
    if module.kernel_size == module.stride == (1, 1):
        return labels
    kernels = (observed["routing"].float() @ module.weight.float()).unflatten(1, module.weight_shape)
    images = zip(labels.map.split(1), kernels, strict=True)
    return labels.with_map(torch.cat([convolve(module, image, still=False, kernel=kernel) for image, kernel in images]))


@register(nn.AvgPool2d, nn.MaxPool2d, AvgPool2dSame, MaxPool2dSame, layer=False)
def move_pool(module: nn.AvgPool2d | nn.MaxPool2d, observed: Observed, labels: Labels) -> Labels:
    return labels.with_map(pool(module, labels.map, still=False))


@register(layers.BlurPool2d, layer=False)
def move_blur(module: layers.BlurPool2d, observed: Observed, labels: Labels) -> Labels:
    return labels.with_map(blur(module, labels.map, still=False))


@register(nn.ConstantPad2d, nn.ZeroPad2d, layer=False)
def move_surround(module: nn.ConstantPad2d, observed: Observed, labels: Labels) -> Labels:
    return labels.with_map(surround(module, labels.map, still=False))


@register(layers.SpaceToDepth, layer=False)
def move_unshuffle(module: layers.SpaceToDepth, observed: Observed, labels: Labels) -> Labels:
    return labels.with_map(unshuffle(module, labels.map, still=False))
