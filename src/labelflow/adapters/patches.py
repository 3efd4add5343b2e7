"""Patch embeddings and mergers that take windows of a map: aggregation."""

from timm.layers import PatchEmbed
from torch import nn

from labelflow import flow
from labelflow.adapters.registry import Seen, register
from labelflow.flow import Labels


def merge(convolution: nn.Conv2d, labels: Labels) -> Labels:
    """Tokens made by a convolution carry the labels of the windows that it looks at."""
    size, stride, padding = convolution.kernel_size, convolution.stride, convolution.padding
    assert not isinstance(padding, str)
    pooled = flow.aggregate(labels.map, (size[0], size[1]), (stride[0], stride[1]), (padding[0], padding[1]))
    return labels.with_map(pooled)


@register(PatchEmbed, layer=False)
def embed(module: PatchEmbed, seen: Seen, labels: Labels) -> Labels:
    if module.dynamic_img_pad:
        labels = labels.with_map(flow.pad(labels.map, module.patch_size))
    return merge(module.proj, labels)
