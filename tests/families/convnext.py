"""ConvNeXt, V1 and V2."""

import timm
from timm.models.convnext import ConvNeXtBlock
from torch import Tensor, nn

from labelflow import Mix
from oracles import convolved, merge_labels, patch_labels, window_labels

CONVNEXT = {"depths": (1, 1, 2, 1), "dims": (8, 12, 16, 20), "num_classes": 5}


def inner_strides(**arguments: object) -> nn.Module:
    """Down-sampling inside a block, which timm's class can do, though its models don't."""
    model = timm.create_model("convnext_atto", **arguments)
    model.stages[2].blocks[1] = ConvNeXtBlock(16, 16, stride=2)
    return model


# name: (timm model or a function, its arguments, an image size it takes)
FAMILIES = {
    "convnext": ("convnext_tiny", CONVNEXT, (64, 64)),
    "convnext, oblong": ("convnext_tiny", {**CONVNEXT, "kernel_sizes": (3, 5, 7, 7)}, (64, 104)),
    "convnext, odd": ("convnext_tiny", CONVNEXT, (76, 84)),
    "convnext, 1x1 convolutions": ("convnext_atto", CONVNEXT, (64, 64)),
    "convnext, overlapping": ("convnext_atto_ols", CONVNEXT, (64, 64)),
    "convnext, dilated": ("convnext_tiny", {**CONVNEXT, "output_stride": 8}, (64, 64)),
    "convnext, strided blocks": (inner_strides, CONVNEXT, (80, 112)),
    "convnext v2": ("convnextv2_tiny", CONVNEXT, (64, 64)),
}
SOME = ["convnext"]  # for what does not depend on the details


def merged(labels: Tensor, convolution: nn.Conv2d) -> Tensor:
    """2×2 windows; where dilation takes the place of strides, a convolution around each token"""
    if convolution.stride == (2, 2):
        return window_labels(labels, 2, 2, 0)
    if convolution.dilation == (1, 1):  # padded at its lower and right edge: a 3×3 kernel without its first row, column
        whole = nn.Conv2d(convolution.in_channels, convolution.out_channels, 3, padding=1)
        whole.weight.data = nn.functional.pad(convolution.weight, (1, 0, 1, 0))
        return convolved(labels, whole)
    return convolved(labels, convolution)


def convnext(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    stem = [module for module in model.stem if isinstance(module, nn.Conv2d)]
    labels = patch_labels(mix, onehot, stem[0].kernel_size[0], stem[0].stride[0], stem[0].padding[0])
    if len(stem) == 2:
        labels = window_labels(labels, 3, 2, 1)
    for stage in model.stages:
        if not isinstance(stage.downsample, nn.Identity):
            labels = merged(labels, stage.downsample[1])
        for block in stage.blocks:
            mixed = convolved(labels, block.conv_dw)
            if block.conv_dw.stride != (1, 1):
                labels = merge_labels(labels)
            labels = (labels + mixed) / 2
    return labels.mean((1, 2)).unsqueeze(1)


ORACLES = {"ConvNeXt": convnext}
