"""EdgeNeXt, iFormer, SHViT, SwiftFormer: convolutions, with attention that is cheap.

EdgeNeXt: convolutions of growing reach in groups of channels, and attention among channels, which moves nothing.

iFormer: convolutions, and attention with a single head whose output is gated.

SHViT: attention with a single head, over some of the channels.

SwiftFormer: one global query, a weighted sum of all, multiplies every key.
"""

import torch
import torch.nn.functional as F
from timm.models.edgenext import ConvBlock, EdgeNeXt, SplitTransposeBlock
from timm.models.iformer import FFN, SHMA, IFormer, RepCPE, SHMABlock
from timm.models.iformer import ConvBlock as IformerConvBlock
from timm.models.shvit import SHSA, BasicBlock, Residual, SHViT
from timm.models.swiftformer import Block, ConvEncoder, EfficientAdditiveAttention, SwiftFormer
from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters import convolutions, graph, windows
from labelflow.adapters.averages import convolutions_in, register_average, staged
from labelflow.adapters.registry import Observed, Tap, register
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


graph.follow(IformerConvBlock, RepCPE, SHMABlock)


@register(SHMA, taps=lambda module: {"query": Tap(module.q), "key": Tap(module.k)})
def iformer_attention(module: SHMA, observed: Observed, labels: Labels) -> Labels:
    """(A·v) ⊙ gate, a product with something of each place: both count alike."""
    window = (module.window_size, module.window_size) if module.window_size else labels.grid
    query, key = (observed[name].flatten(2).mT.unsqueeze(1) for name in ("query", "key"))  # (B·windows, 1, r·s, D)

    def attend(parts: Tensor) -> Tensor:
        return flow.attend(query, key, parts)

    mixed = windows.mix(labels.map, window, (0, 0), attend)
    return labels.with_map((mixed + labels.map) / 2)


def _iformer_path(model: IFormer) -> list[nn.Module]:
    return [module for module in staged(model) if not isinstance(module, FFN)]


register_average(IFormer, path=_iformer_path, pool=lambda model: model.global_pool)


graph.follow(BasicBlock, Residual)


@register(SHSA, taps=lambda module: {"qkv": Tap(module.qkv)})
def shvit_attention(module: SHSA, observed: Observed, labels: Labels) -> Labels:
    """The mean over channels: those that attention mixes, and the others."""
    query, key = observed["qkv"].flatten(2).mT.unsqueeze(1).split(module.qk_dim, -1)[:2]  # (B, 1, N, D)
    mixed = flow.attend(query, key, labels.values, scale=module.scale)
    part = module.pdim / module.dim
    return Labels(part * mixed + (1 - part) * labels.values, labels.grid)


def _shvit_path(model: SHViT) -> list[nn.Module]:
    path = convolutions_in(model.patch_embed)
    for stage in model.stages:
        if not isinstance(stage.downsample, nn.Identity):
            before, _, merge, after, _ = stage.downsample
            path += [before, merge.conv2.c, after]
        path += stage.blocks
    return path


register_average(SHViT, path=_shvit_path, pool=lambda model: model.global_pool.pool_type)


graph.follow(Block, ConvEncoder)


@register(EfficientAdditiveAttention, taps=lambda module: {"query": Tap(module.to_query)})
def swiftformer_attention(module: EfficientAdditiveAttention, observed: Observed, labels: Labels) -> Labels:
    """(Σᵢ aᵢqᵢ)·k + q: a product, whose factors count alike, and a sum."""
    query = F.normalize(observed["query"].float(), dim=-1)  # (B, N, D)
    weights = (query @ module.w_g.float()).mT  # (B, 1, N), up to what Norm takes out
    everywhere = flow.spatial(weights, labels.values)  # (B, 1, K): the global query's label
    product = (everywhere + labels.values) / 2
    return Labels((product + labels.values) / 2, labels.grid)


register_average(SwiftFormer, path=staged, pool=lambda model: model.global_pool)
