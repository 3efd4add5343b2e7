"""ConvNeXt and RDNet.

ConvNeXt, V1 and V2: each block is a depth-wise convolution, and an MLP that leaves labels as they are.

RDNet: each block of a stage convolves what all blocks before it have made, side by side.
"""

from timm.models.convnext import ConvNeXt, ConvNeXtBlock
from timm.models.rdnet import DenseStage, RDNet
from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters import convolutions
from labelflow.adapters.averages import convolutions_in, register_average, staged
from labelflow.adapters.registry import Observed, Tap, register
from labelflow.flow import Labels


def _check(block: ConvNeXtBlock) -> dict[str, Tap]:
    pool = getattr(block.shortcut, "pool", None)
    if type(block.conv_dw) is not nn.Conv2d or type(pool) not in (type(None), nn.Identity, nn.AvgPool2d):
        raise ValueError("labelflow follows labels through ConvNeXt's blocks with symmetric padding, not with 'same'")
    return {}


def _shortcut(block: ConvNeXtBlock, labels: Tensor) -> Tensor:
    """(B, h, w, K) -> (B, i, j, K)"""
    pool = getattr(block.shortcut, "pool", None)  # none in timm's own models, which down-sample between blocks
    if not isinstance(pool, nn.AvgPool2d):
        return labels
    return flow.aggregate(labels, (2, 2), block.conv_dw.stride, ceil=True)


def _idle(module: ConvNeXtBlock, observed: Observed, labels: Labels) -> Labels:
    return labels.with_map(_shortcut(module, labels.map))


@register(ConvNeXtBlock, taps=_check, idle=_idle)
def block(module: ConvNeXtBlock, observed: Observed, labels: Labels) -> Labels:
    convolution = module.conv_dw
    stride, padding, dilation = convolution.stride, convolution.padding, convolution.dilation
    mixed = flow.convolve(convolution.weight, labels.map, stride, padding, dilation)
    return labels.with_map(observed.residual(_shortcut(module, labels.map), mixed))


register_average(ConvNeXt, path=staged)


@register(DenseStage)
def rdnet_stage(module: DenseStage, observed: Observed, labels: Labels) -> Labels:
    """Channels that are concatenated count alike: the mean over all of them."""
    joined = labels.map
    for block in module:
        (depthwise, *_) = block.layers.layers  # the others are 1×1
        moved = convolutions.convolve(depthwise, joined, still=False)
        part = block.growth_rate / (depthwise.in_channels + block.growth_rate)
        joined = part * moved + (1 - part) * joined
    return labels.with_map(joined)


def _rdnet_path(model: RDNet) -> list[nn.Module]:
    path = convolutions_in(model.stem)
    for *transition, dense in model.dense_stages:
        path += [one for one in transition if isinstance(one, nn.Conv2d) and one.stride != (1, 1)]
        path.append(dense)
    return path


register_average(RDNet, path=_rdnet_path)
