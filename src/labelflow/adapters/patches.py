"""Patch embeddings and mergers that take windows of a map: aggregation."""

from timm.layers import PatchEmbed
from torch import nn

from labelflow import flow
from labelflow.adapters.registry import Observed, register
from labelflow.flow import Labels


def merge(convolution: nn.Conv2d, labels: Labels) -> Labels:
    """Tokens made by a convolution carry the labels of the windows that it looks at."""
    assert not isinstance(convolution.padding, str)
    size, stride, padding, dilation = (
        (sides[0], sides[1])
        for sides in (convolution.kernel_size, convolution.stride, convolution.padding, convolution.dilation)
    )
    if dilation != (1, 1):  # windows with holes
        window = labels.values.new_ones(1, 1, *size)
        return labels.with_map(flow.convolve(window, labels.map, stride, padding, dilation))
    return labels.with_map(flow.aggregate(labels.map, size, stride, padding))


@register(PatchEmbed, layer=False)
def embed(module: PatchEmbed, observed: Observed, labels: Labels) -> Labels:
    labels = Labels(labels.map.flatten(1, 2), labels.grid)  # a class token of the stage before does not go through
    if module.dynamic_img_pad:
        labels = labels.with_map(flow.pad(labels.map, module.patch_size))
    return merge(module.proj, labels)
