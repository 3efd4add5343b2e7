"""CSATv2: patches' frequencies, convolutions gated by a coarse map of attention, and transformer blocks in the end."""

import torch.nn.functional as F
from timm.layers import LayerNorm2d
from timm.models.csatv2 import Block, CSATv2, LearnableDct2d, SpatialAttention, TransformerBlock
from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters import attention
from labelflow.adapters.averages import register_average
from labelflow.adapters.registry import Observed, register
from labelflow.flow import Labels


@register(LearnableDct2d, layer=False)
def embed(module: LearnableDct2d, observed: Observed, labels: Labels) -> Labels:
    return labels.with_map(flow.aggregate(labels.map, (module.k, module.k)))


def _gate(module: SpatialAttention, labels: Tensor) -> Tensor:
    """7×7 places, convolved. The transformer that follows normalises each place's only channel, LayerNorm(1), of which
    nothing but the bias is left: what it adds is the same for all images, and moves no label."""
    coarse = flow.normalise(F.adaptive_avg_pool2d(labels.permute(0, 3, 1, 2), (7, 7)).permute(0, 2, 3, 1))
    coarse = flow.convolve(module.conv.weight, coarse).permute(0, 3, 1, 2)
    full = F.interpolate(coarse, labels.shape[1:3], mode="bilinear", align_corners=True)
    return flow.normalise(full.permute(0, 2, 3, 1))


@register(Block)
def convolution(module: Block, observed: Observed, labels: Labels) -> Labels:
    moved = flow.convolve(module.dwconv.weight, labels.map)
    gated = (moved + _gate(module.attn, moved)) / 2  # a product, whose factors count alike
    return labels.with_map(observed.residual(labels.map, gated))


@register(TransformerBlock, taps=lambda block: attention.taps(block.attn))
def transformer(module: TransformerBlock, observed: Observed, labels: Labels) -> Labels:
    """A convolution with a shortcut, of what attention sees alone; then attention."""
    placed = labels.with_map(observed.residual(labels.map, flow.convolve(module.pos_embed.proj.weight, labels.map)))
    mixed = attention.mix(module.attn, observed, placed.values)
    return Labels(observed.residual(labels.values, mixed), labels.grid)


def _path(model: CSATv2) -> list[nn.Module]:
    stages = [module for stage in model.stages for module in stage if not isinstance(module, LayerNorm2d)]
    return [model.stem_dct, *stages]


register_average(CSATv2, path=_path)
