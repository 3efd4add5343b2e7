"""Swin: labels roll, are padded, windowed, masked and merged as tokens are."""

import torch
from timm.models.swin_transformer import (
    PatchMerging,
    SwinTransformer,
    SwinTransformerBlock,
    window_partition,
    window_reverse,
)
from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters.registry import Seen, Tap, register, register_model
from labelflow.flow import Labels


def _taps(block: SwinTransformerBlock) -> dict[str, Tap]:
    return {"qkv": Tap(block.attn.qkv), "weights": Tap(block.attn.attn_drop, "input")}  # weights: if not fused


def _mix_windows(block: SwinTransformerBlock, seen: Seen, labels: Tensor, padded: tuple[int, int]) -> Tensor:
    """Window attention: (windows, places, K) -> (windows, places, K)"""
    if "weights" in seen:
        return flow.attention(seen["weights"], labels)
    windows, places = labels.shape[:2]
    query, key, _ = seen["qkv"].reshape(windows, places, 3, block.attn.num_heads, -1).permute(2, 0, 3, 1, 4)
    bias = block.attn._get_rel_pos_bias()  # (1, heads, places, places)
    mask = block.get_attn_mask(labels.new_empty(1, *padded, 1)) if block.dynamic_mask else block.attn_mask
    if mask is not None:  # (windows of an image, places, places)
        bias = (bias + mask.unsqueeze(1)).repeat(windows // len(mask), 1, 1, 1)
    return flow.attend(query, key, labels, bias)


@register(SwinTransformerBlock, taps=_taps)
def block(module: SwinTransformerBlock, seen: Seen, labels: Labels) -> Labels:
    height, width = labels.grid
    rows, columns = module.shift_size
    window = module.window_size
    shifted = flow.pad(torch.roll(labels.map, (-rows, -columns), (1, 2)), window)
    padded = (shifted.shape[1], shifted.shape[2])
    windows = window_partition(shifted, window).flatten(1, 2)  # (windows, places, K)
    mixed = _mix_windows(module, seen, windows, padded).unflatten(1, window)
    mixed = window_reverse(mixed, window, *padded)[:, :height, :width]
    mixed = torch.roll(mixed, (rows, columns), (1, 2))
    return labels.with_map(seen.residual(labels.map, mixed))


@register(PatchMerging, layer=False)
def merge(module: PatchMerging, seen: Seen, labels: Labels) -> Labels:
    return labels.with_map(flow.aggregate(flow.pad(labels.map, (2, 2)), (2, 2)))


def _path(model: SwinTransformer) -> list[nn.Module]:
    stages = [[stage.downsample, *stage.blocks] for stage in model.layers]
    return [model.patch_embed, *(module for stage in stages for module in stage if not isinstance(module, nn.Identity))]


def _head_tokens(model: SwinTransformer) -> int:
    pool = model.head.global_pool.pool_type
    if pool != "avg":
        raise ValueError(f"labelflow follows labels to an average, not to global_pool={pool!r}")
    return 0


register_model(
    SwinTransformer, path=_path, heads=lambda model, labels: labels.mean(1, keepdim=True), head_tokens=_head_tokens
)
