"""Next-ViT and Visformer: convolutions and attention in turns.

Next-ViT: convolutions among groups of channels, and at the end of a stage attention and such a convolution side by
side. The first block of a stage pools its input.

Visformer: attention on maps, or 3×3 convolutions in the MLP.
"""

import torch.nn.functional as F
from timm.models.nextvit import NextConvBlock, NextTransformerBlock, NextViT
from timm.models.visformer import Block, Visformer
from torch import nn

from labelflow import flow
from labelflow.adapters import convolutions, graph
from labelflow.adapters.averages import convolutions_in, present, register_average
from labelflow.adapters.registry import Observed, Tap, register
from labelflow.flow import Labels

graph.follow(NextConvBlock)


def _nextvit_pool(module: NextTransformerBlock, observed: Observed, labels: Labels) -> Labels:
    pool = module.patch_embed.pool
    if isinstance(pool, nn.Identity):
        return labels
    return labels.with_map(convolutions.pool(pool, labels.map, still=False))


@register(
    NextTransformerBlock,
    taps=lambda block: {"query": Tap(block.e_mhsa.q), "key": Tap(block.e_mhsa.k)},  # (B, N, A·D), (B, M, A·D)
    idle=_nextvit_pool,
)
def nextvit_block(module: NextTransformerBlock, observed: Observed, labels: Labels) -> Labels:
    """Attention makes some channels, a convolution of these the others: the mean over all of them."""
    labels = _nextvit_pool(module, observed, labels)
    sources = labels.values
    if module.e_mhsa.sr is not None:  # pools tokens as they follow one another, row by row, and leaves out a rest
        sources = F.avg_pool1d(sources.mT, module.e_mhsa.N_ratio).mT
    heads = module.e_mhsa.num_heads
    query, key = (observed[name].unflatten(-1, (heads, -1)).transpose(1, 2) for name in ("query", "key"))
    attended = observed.residual(labels.values, flow.attend(query, key, sources)).unflatten(1, labels.grid)
    moved = convolutions.convolve(module.mhca.group_conv3x3, attended, still=False)
    part = module.mhca_out_chs / module.out_chs
    return labels.with_map(part * observed.residual(attended, moved) + (1 - part) * attended)


def _nextvit_path(model: NextViT) -> list[nn.Module]:
    return [*convolutions_in(model.stem), *(block for stage in model.stages for block in stage.blocks)]


register_average(NextViT, path=_nextvit_path)


def _visformer_taps(block: Block) -> dict[str, Tap]:
    if block.attn is None:
        return {}
    return {"qkv": Tap(block.attn.qkv), "weights": Tap(block.attn.attn_drop, "input")}  # weights: if not fused


@register(Block, taps=_visformer_taps)
def visformer_block(module: Block, observed: Observed, labels: Labels) -> Labels:
    if module.attn is not None:
        if "weights" in observed:
            mixed = flow.attention(observed["weights"], labels.values)
        else:
            qkv = observed["qkv"].flatten(2).unflatten(1, (3, module.attn.num_heads, -1))  # (B, 3, A, D, N)
            query, key, _ = qkv.transpose(-2, -1).unbind(1)
            mixed = flow.attend(query, key, labels.values)
        labels = Labels(observed.residual(labels.values, mixed), labels.grid)
    if module.mlp.conv2 is not None:
        labels = labels.with_map(observed.residual(labels.map, flow.convolve(module.mlp.conv2.weight, labels.map)))
    return labels


def _visformer_path(model: Visformer) -> list[nn.Module]:
    stem = [] if model.stem is None else [model.stem[0]]  # its convolution; norm and activation move nothing
    return present(
        *stem,
        *(model.patch_embed1, *model.stage1),
        *(model.patch_embed2, *model.stage2),
        *(model.patch_embed3, *model.stage3),
    )


register_average(Visformer, path=_visformer_path, pool=lambda model: model.global_pool.pool_type)
