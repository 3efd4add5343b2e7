"""DaViT, GC-ViT, NesT: attention in windows that do not shift.

DaViT: window attention, attention among channels, which leaves labels as they are, and convolutions for places.

GC-ViT: attention in windows, where every other block's queries come from the whole image; they only decide where a
token looks, so their own way through the feature blocks is of no interest.

NesT: attention inside blocks of the image; a convolution and a pool between levels.
"""

import math

from timm.models.davit import ChannelBlock, ConvPosEnc, DaVit, Downsample, SpatialBlock, Stem
from timm.models.gcvit import Downsample2d, GlobalContextVit, GlobalContextVitBlock
from timm.models.nest import ConvPool, Nest, TransformerLayer
from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters import convolutions, patches, windows
from labelflow.adapters.averages import present, register_average
from labelflow.adapters.registry import Observed, Tap, register
from labelflow.flow import Labels


@register(Stem, Downsample, layer=False)
def davit_merge(module: Stem | Downsample, observed: Observed, labels: Labels) -> Labels:
    whole = module.stride if isinstance(module, Stem) else module.conv.kernel_size if module.even_k else (1, 1)
    return patches.merge(module.conv, labels.with_map(flow.pad(labels.map, whole)))


def _davit_encode(module: ConvPosEnc, observed: Observed, labels: Tensor) -> Tensor:
    """A depth-wise convolution and its shortcut: (B, h, w, K) -> (B, h, w, K)"""
    return observed.residual(labels, flow.convolve(module.proj.weight, labels))


@register(SpatialBlock, taps=lambda block: {"qkv": Tap(block.attn.qkv)})
def spatial(module: SpatialBlock, observed: Observed, labels: Labels) -> Labels:
    start = _davit_encode(module.cpe1, observed, labels.map)
    qkv = observed["qkv"].unflatten(-1, (3, module.attn.num_heads, -1))  # (B·windows, places, 3, A, D)
    query, key, _ = qkv.permute(2, 0, 3, 1, 4)
    mixed = windows.mix(start, module.window_size, (0, 0), lambda parts: flow.attend(query, key, parts))
    return labels.with_map(_davit_encode(module.cpe2, observed, observed.residual(start, mixed)))


@register(ChannelBlock)
def channel(module: ChannelBlock, observed: Observed, labels: Labels) -> Labels:
    return labels.with_map(_davit_encode(module.cpe2, observed, _davit_encode(module.cpe1, observed, labels.map)))


def _davit_path(model: DaVit) -> list[nn.Module]:
    stages = [[stage.downsample, *(part for pair in stage.blocks for part in pair)] for stage in model.stages]
    return [model.stem, *(module for stage in stages for module in present(*stage))]


register_average(DaVit, path=_davit_path)


@register(GlobalContextVitBlock, taps=lambda block: {"weights": Tap(block.attn.attn_drop, "input")})
def gcvit_block(module: GlobalContextVitBlock, observed: Observed, labels: Labels) -> Labels:
    mixed = windows.mix(
        labels.map, module.window_size, (0, 0), lambda parts: flow.attention(observed["weights"], parts)
    )
    return labels.with_map(observed.residual(labels.map, mixed))


@register(Downsample2d, layer=False)
def gcvit_downsample(module: Downsample2d, observed: Observed, labels: Labels) -> Labels:
    """A depth-wise convolution with a shortcut, then the reduction."""
    mixed = flow.convolve(module.conv_block.conv_dw.weight, labels.map)
    labels = labels.with_map(observed.residual(labels.map, mixed))
    if isinstance(module.reduction, nn.Conv2d):
        return patches.merge(module.reduction, labels)
    return labels.with_map(convolutions.pool(module.reduction, labels.map, still=False))


def _gcvit_path(model: GlobalContextVit) -> list[nn.Module]:
    stages = [present(stage.downsample, *stage.blocks) for stage in model.stages]
    return [model.stem.conv1, model.stem.down, *(module for stage in stages for module in stage)]


register_average(GlobalContextVit, path=_gcvit_path)


def _nest_taps(layer: TransformerLayer) -> dict[str, Tap]:
    return {"qkv": Tap(layer.attn.qkv), "weights": Tap(layer.attn.attn_drop, "input")}  # weights: if not fused


def _nest_attend(heads: int, observed: Observed, labels: Tensor) -> Tensor:
    """In each block: labels (B·blocks, places, K)"""
    if "weights" in observed:
        return flow.attention(observed["weights"].transpose(1, 2).flatten(0, 1), labels)
    query, key, _ = observed["qkv"].flatten(0, 1).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    return flow.attend(query, key, labels)


@register(TransformerLayer, taps=_nest_taps)
def nest_layer(module: TransformerLayer, observed: Observed, labels: Labels) -> Labels:
    side = math.isqrt(observed["qkv"].shape[2])  # (B, blocks, places, 3·D)
    mixed = windows.mix(
        labels.map, (side, side), (0, 0), lambda parts: _nest_attend(module.attn.num_heads, observed, parts)
    )
    return labels.with_map(observed.residual(labels.map, mixed))


@register(ConvPool, layer=False)
def nest_pool(module: ConvPool, observed: Observed, labels: Labels) -> Labels:
    return labels.with_map(convolutions.pool(module.pool, flow.convolve(module.conv.weight, labels.map), still=False))


def _nest_path(model: Nest) -> list[nn.Module]:
    levels = (module for level in model.levels for module in (level.pool, *level.transformer_encoder))
    return present(model.patch_embed, *levels)


register_average(Nest, path=_nest_path, pool=lambda model: model.global_pool.pool_type)
