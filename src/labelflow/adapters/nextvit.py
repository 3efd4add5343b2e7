"""Next-ViT: convolutions among groups of channels, and at the end of a stage attention and such a convolution side by
side. The first block of a stage pools its input."""

import torch.nn.functional as F
from timm.models.nextvit import NextConvBlock, NextTransformerBlock, NextViT
from torch import nn

from labelflow import flow
from labelflow.adapters import convolutions, graph
from labelflow.adapters.averages import convolutions_in, register_average
from labelflow.adapters.registry import Observed, Tap, register
from labelflow.flow import Labels

graph.follow(NextConvBlock)


def _pool(module: NextTransformerBlock, observed: Observed, labels: Labels) -> Labels:
    pool = module.patch_embed.pool
    if isinstance(pool, nn.Identity):
        return labels
    return labels.with_map(convolutions.pool(pool, labels.map, still=False))


@register(
    NextTransformerBlock,
    taps=lambda block: {"query": Tap(block.e_mhsa.q), "key": Tap(block.e_mhsa.k)},  # (B, N, A·D), (B, M, A·D)
    idle=_pool,
)
def block(module: NextTransformerBlock, observed: Observed, labels: Labels) -> Labels:
    """Attention makes some channels, a convolution of these the others: the mean over all of them."""
    labels = _pool(module, observed, labels)
    sources = labels.values
    if module.e_mhsa.sr is not None:  # pools tokens as they follow one another, row by row, and leaves out a rest
        sources = F.avg_pool1d(sources.mT, module.e_mhsa.N_ratio).mT
    heads = module.e_mhsa.num_heads
    query, key = (observed[name].unflatten(-1, (heads, -1)).transpose(1, 2) for name in ("query", "key"))
    attended = observed.residual(labels.values, flow.attend(query, key, sources)).unflatten(1, labels.grid)
    moved = convolutions.convolve(module.mhca.group_conv3x3, attended, still=False)
    part = module.mhca_out_chs / module.out_chs
    return labels.with_map(part * observed.residual(attended, moved) + (1 - part) * attended)


def _path(model: NextViT) -> list[nn.Module]:
    return [*convolutions_in(model.stem), *(block for stage in model.stages for block in stage.blocks)]


register_average(NextViT, path=_path)
