"""MetaFormer and FocalNet.

MetaFormer: PoolFormer, ConvFormer, CAFormer; blocks that differ in their token mixer alone.

FocalNet: each token is multiplied by its context, a sum of ever wider averages, weighted by gates of its own.
"""

import torch
from timm.models.focalnet import Downsample, FocalNet, FocalNetBlock
from timm.models.metaformer import Attention, Downsampling, MetaFormer, MetaFormerBlock, Pooling, SepConv, Stem
from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters import patches
from labelflow.adapters.averages import present, register_average
from labelflow.adapters.registry import Observed, Tap, register
from labelflow.flow import Labels


def _taps(block: MetaFormerBlock) -> dict[str, Tap]:
    mixer = block.token_mixer
    if type(mixer) not in (Attention, Pooling, SepConv, nn.Identity):
        raise ValueError(
            f"labelflow follows labels through MetaFormer's Pooling, SepConv and Attention, not {type(mixer).__name__}"
        )
    if isinstance(mixer, Attention):
        return {"qkv": Tap(mixer.qkv), "weights": Tap(mixer.attn_drop, "input")}  # weights: if not fused
    return {}


def pooled(pool: nn.AvgPool2d, labels: Tensor) -> Tensor:
    """AvgPool(Z) - Z: of a window of n places, each neighbour weighs 1/n and the middle |1/n - 1|, as all the others
    together: labels (B, h, w, K) -> (B, h, w, K)"""
    assert isinstance(pool.kernel_size, int)
    size = pool.kernel_size
    neighbours = labels.new_ones(1, 1, size, size)
    neighbours[..., size // 2, size // 2] = 0
    return (labels + flow.convolve(neighbours, labels)) / 2


def _mix(mixer: nn.Module, observed: Observed, labels: Labels) -> Labels:
    if isinstance(mixer, Pooling):
        return labels.with_map(pooled(mixer.pool, labels.map))
    if isinstance(mixer, SepConv):
        return labels.with_map(flow.convolve(mixer.dwconv.weight, labels.map, padding=mixer.dwconv.padding))
    if not isinstance(mixer, Attention):  # nn.Identity
        return labels
    if "weights" in observed:
        return Labels(flow.attention(observed["weights"], labels.values), labels.grid)
    query, key, _ = observed["qkv"].unflatten(-1, (3, mixer.num_heads, -1)).permute(2, 0, 3, 1, 4)  # (B, A, N, D)
    return Labels(flow.attend(query, key, labels.values), labels.grid)


@register(MetaFormerBlock, taps=_taps)
def block(module: MetaFormerBlock, observed: Observed, labels: Labels) -> Labels:
    mixed = _mix(module.token_mixer, observed, labels)
    return Labels(observed.residual(labels.values, mixed.values), labels.grid)


@register(Stem, Downsampling, layer=False)
def merge(module: Stem | Downsampling, observed: Observed, labels: Labels) -> Labels:
    return patches.merge(module.conv, labels)


def _path(model: MetaFormer) -> list[nn.Module]:
    return [model.stem, *(module for stage in model.stages for module in present(stage.downsample, *stage.blocks))]


register_average(MetaFormer, path=_path)


@register(Downsample, layer=False)
def focalnet_merge(module: Downsample, observed: Observed, labels: Labels) -> Labels:
    return patches.merge(module.proj, labels)


@register(FocalNetBlock, taps=lambda block: {"parts": Tap(block.modulation.f)})
def focalnet_block(module: FocalNetBlock, observed: Observed, labels: Labels) -> Labels:
    modulation = module.modulation
    gates = observed["parts"][:, 2 * modulation.dim :].float().abs().unsqueeze(-1)  # (B, levels + 1, h, w, 1)
    context, levels = labels.map, []
    for layer in modulation.focal_layers:
        context = flow.convolve(layer[0].weight, context)
        levels.append(context)
    levels.append(context.mean((1, 2), keepdim=True).expand_as(context))  # the last gate is for all places alike
    mixed = flow.normalise((gates * torch.stack(levels, 1)).sum(1))
    modulated = (labels.map + mixed) / 2  # a product: both of its factors count
    return labels.with_map(observed.residual(labels.map, modulated))


def _focalnet_path(model: FocalNet) -> list[nn.Module]:
    stages = [present(stage.downsample, *stage.blocks) for stage in model.layers]
    return [model.stem, *(module for stage in stages for module in stage)]


register_average(FocalNet, path=_focalnet_path)
