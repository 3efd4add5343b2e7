"""MobileViT, v1 and v2: pixels at the same place in their patches attend to one another. Other blocks are ByobNet's.

Shapes: B batch, h×w a map, P pixels of a patch, N patches, D channels, K sources.
"""

import torch.nn.functional as F
from timm.models.mobilevit import MobileVitBlock, MobileVitV2Block
from torch import Tensor

from labelflow import flow
from labelflow.adapters import attention, convolutions
from labelflow.adapters.registry import Observed, Tap, register
from labelflow.flow import Labels


def _resize(labels: Tensor, size: tuple[int, int], align_corners: bool) -> Tensor:
    """As the model resizes its map: (B, h, w, K)"""
    if tuple(labels.shape[1:3]) == size:
        return labels
    resized = F.interpolate(labels.permute(0, 3, 1, 2), size, mode="bilinear", align_corners=align_corners)
    return resized.permute(0, 2, 3, 1)


def _whole_patches(labels: Tensor, patch: tuple[int, int]) -> tuple[int, int]:
    height, width = labels.shape[1:3]
    return -(-height // patch[0]) * patch[0], -(-width // patch[1]) * patch[1]


def _unfold(labels: Tensor, patch: tuple[int, int]) -> Tensor:
    """(B, h, w, K) -> (B, P, N, K)"""
    parts = labels.unflatten(2, (-1, patch[1])).unflatten(1, (-1, patch[0]))  # (B, rows, r, columns, s, K)
    return parts.permute(0, 2, 4, 1, 3, 5).flatten(3, 4).flatten(1, 2)


def _fold(parts: Tensor, patch: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """(B, P, N, K) -> (B, h, w, K)"""
    parts = parts.unflatten(2, (size[0] // patch[0], size[1] // patch[1])).unflatten(1, patch)
    return parts.permute(0, 3, 1, 4, 2, 5).flatten(3, 4).flatten(1, 2)


def _taps(module: MobileVitBlock) -> dict[str, Tap]:
    blocks = enumerate(module.transformer)
    return {tap: where for number, block in blocks for tap, where in attention.taps(block.attn, f"{number}/").items()}


def _idle(module: MobileVitBlock, observed: Observed, labels: Labels) -> Labels:
    return labels.with_map(convolutions.convolve(module.conv_kxk.conv, labels.map, still=True))


@register(MobileVitBlock, taps=_taps, idle=_idle)
def block(module: MobileVitBlock, observed: Observed, labels: Labels) -> Labels:
    """There is no residual but inside of the transformer: its output is concatenated with the block's input."""
    local = convolutions.convolve(module.conv_kxk.conv, labels.map, still=False)
    size = _whole_patches(local, module.patch_size)
    parts = _unfold(_resize(local, size, align_corners=False), module.patch_size)
    tokens = parts.flatten(0, 1)  # (B·P, N, K)
    for number, inner in enumerate(module.transformer):
        tokens = observed.residual(tokens, attention.mix(inner.attn, observed, tokens, f"{number}/"))
    mixed = _fold(tokens.view_as(parts), module.patch_size, size)
    mixed = _resize(mixed, (local.shape[1], local.shape[2]), align_corners=False)
    if module.conv_fusion is not None:
        part = module.conv_proj.conv.out_channels / module.conv_fusion.conv.in_channels
        joined = part * mixed + (1 - part) * labels.map
        mixed = convolutions.convolve(module.conv_fusion.conv, joined, still=False)
    return labels.with_map(mixed)


def _taps_v2(module: MobileVitV2Block) -> dict[str, Tap]:
    return {str(number): Tap(block.attn.qkv_proj) for number, block in enumerate(module.transformer)}


def _idle_v2(module: MobileVitV2Block, observed: Observed, labels: Labels) -> Labels:
    return labels.with_map(_resize(labels.map, _whole_patches(labels.map, module.patch_size), align_corners=True))


@register(MobileVitV2Block, taps=_taps_v2, idle=_idle_v2)
def block_v2(module: MobileVitV2Block, observed: Observed, labels: Labels) -> Labels:
    """Linear attention: each value is multiplied with one context vector, a weighted mean of all keys at its place in
    their patches. The factors of a product count alike. A map that was resized stays so."""
    labels = _idle_v2(module, observed, labels)
    local = convolutions.convolve(module.conv_kxk.conv, labels.map, still=False)
    tokens = _unfold(local, module.patch_size)
    for number in range(len(module.transformer)):
        weights = observed[str(number)][:, 0].float().softmax(-1)  # (B, P, N)
        context = flow.product(weights.unsqueeze(2), tokens)  # (B, P, 1, K)
        tokens = observed.residual(tokens, (tokens + context) / 2)
    return labels.with_map(_fold(tokens, module.patch_size, labels.grid))
