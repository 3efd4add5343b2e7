"""NesT: attention inside blocks of the image; a convolution and a pool between levels."""

import math

from timm.models.nest import ConvPool, Nest, TransformerLayer
from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters import convolutions, windows
from labelflow.adapters.averages import present, register_average
from labelflow.adapters.registry import Observed, Tap, register
from labelflow.flow import Labels


def _taps(layer: TransformerLayer) -> dict[str, Tap]:
    return {"qkv": Tap(layer.attn.qkv), "weights": Tap(layer.attn.attn_drop, "input")}  # weights: if not fused


def _attend(heads: int, observed: Observed, labels: Tensor) -> Tensor:
    """In each block: labels (B·blocks, places, K)"""
    if "weights" in observed:
        return flow.attention(observed["weights"].transpose(1, 2).flatten(0, 1), labels)
    query, key, _ = observed["qkv"].flatten(0, 1).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    return flow.attend(query, key, labels)


@register(TransformerLayer, taps=_taps)
def layer(module: TransformerLayer, observed: Observed, labels: Labels) -> Labels:
    side = math.isqrt(observed["qkv"].shape[2])  # (B, blocks, places, 3·D)
    mixed = windows.mix(labels.map, (side, side), (0, 0), lambda parts: _attend(module.attn.num_heads, observed, parts))
    return labels.with_map(observed.residual(labels.map, mixed))


@register(ConvPool, layer=False)
def pool(module: ConvPool, observed: Observed, labels: Labels) -> Labels:
    return labels.with_map(convolutions.pool(module.pool, flow.convolve(module.conv.weight, labels.map), still=False))


def _path(model: Nest) -> list[nn.Module]:
    levels = (module for level in model.levels for module in (level.pool, *level.transformer_encoder))
    return present(model.patch_embed, *levels)


register_average(Nest, path=_path, pool=lambda model: model.global_pool.pool_type)
