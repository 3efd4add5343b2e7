"""EdgeNeXt: convolutions of growing reach in groups of channels, and attention among channels, which moves nothing."""

import torch
from timm.models.edgenext import ConvBlock, EdgeNeXt, SplitTransposeBlock
from torch import Tensor

from labelflow import flow
from labelflow.adapters import convolutions, graph
from labelflow.adapters.averages import register_average, staged
from labelflow.adapters.registry import Observed, register
from labelflow.flow import Labels

graph.follow(ConvBlock)


def _scales(module: SplitTransposeBlock, labels: Tensor) -> Tensor:
    """The first group of channels is convolved; each other one, summed with the one before it; the last one stays."""
    moved = labels
    total, channels = torch.zeros_like(labels), module.mlp.fc1.in_features
    for number, convolution in enumerate(module.convs):
        moved = flow.residual(labels, moved) if number else moved
        moved = convolutions.convolve(convolution, moved, still=False)
        total = total + convolution.out_channels * moved
        channels -= convolution.out_channels
    return flow.normalise(total + channels * labels)


@register(SplitTransposeBlock)
def split_transpose(module: SplitTransposeBlock, observed: Observed, labels: Labels) -> Labels:
    return labels.with_map(observed.residual(labels.map, _scales(module, labels.map)))


register_average(EdgeNeXt, path=staged)
