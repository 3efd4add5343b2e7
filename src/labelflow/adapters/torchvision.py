"""torchvision's ViT and Swin, v1 and v2: attention is computed inside one call, so queries and keys are computed again
from its input, with the module's own weights."""

import math

import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.swin_transformer import (
    PatchMerging,
    PatchMergingV2,
    ShiftedWindowAttention,
    ShiftedWindowAttentionV2,
    SwinTransformer,
    SwinTransformerBlock,
    SwinTransformerBlockV2,
)
from torchvision.models.vision_transformer import EncoderBlock, VisionTransformer

from labelflow import flow
from labelflow.adapters import swin, windows
from labelflow.adapters.registry import Observed, Tap, register, register_model
from labelflow.flow import Labels


def _project(tokens: Tensor, weight: Tensor, bias: Tensor | None, heads: int) -> Tensor:
    """(B, N, C) -> (B, A, N, D)"""
    projected = F.linear(tokens.float(), weight.float(), None if bias is None else bias.float())
    return projected.unflatten(-1, (heads, -1)).transpose(1, 2)


@register(EncoderBlock, taps=lambda block: {"tokens": Tap(block.self_attention, "input")})
def encoder_block(module: EncoderBlock, observed: Observed, labels: Labels) -> Labels:
    attention, tokens = module.self_attention, observed["tokens"]
    weights, biases = attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3)
    query = _project(tokens[:, observed.rows], weights[0], biases[0], attention.num_heads)
    key = _project(tokens, weights[1], biases[1], attention.num_heads)
    mixed = flow.attend(query, key, labels.values)
    return Labels(observed.residual(labels.values[:, observed.rows], mixed), labels.grid)


register_model(
    VisionTransformer,
    # A stem of several convolutions: each of them aggregates.
    path=lambda model: [
        *(module for module in model.conv_proj.modules() if isinstance(module, nn.Conv2d)),
        *model.encoder.layers,
    ],
    heads=lambda model, labels: labels[:, :1],
    head_tokens=lambda model: 1,
)


def _swin_taps(block: SwinTransformerBlock) -> dict[str, Tap]:
    if type(block.attn) not in (ShiftedWindowAttention, ShiftedWindowAttentionV2):
        raise ValueError(f"labelflow follows labels through shifted windows, not {type(block.attn).__name__}")
    return {"tokens": Tap(block.attn, "input")}  # (B, h, w, C)


@register(SwinTransformerBlock, SwinTransformerBlockV2, taps=_swin_taps)
def swin_block(module: SwinTransformerBlock, observed: Observed, labels: Labels) -> Labels:
    attention = module.attn
    window = (attention.window_size[0], attention.window_size[1])
    tokens, padded = flow.pad(observed["tokens"], window), flow.pad(labels.map, window)  # here, padding rolls, too
    grid = (padded.shape[1], padded.shape[2])
    rows, columns = (
        0 if reach >= side else step for reach, side, step in zip(window, grid, attention.shift_size, strict=True)
    )
    shifted = windows.split(tokens.roll((-rows, -columns), (1, 2)), window)  # (B·windows, places, C)
    weights = attention.qkv.weight.chunk(3)
    biases = (None, None) if attention.qkv.bias is None else attention.qkv.bias.chunk(3)
    cosine = isinstance(attention, ShiftedWindowAttentionV2)
    query = _project(shifted, weights[0], biases[0], attention.num_heads)
    key = _project(shifted, weights[1], None if cosine else biases[1], attention.num_heads)
    if cosine:
        scale = attention.logit_scale.float().clamp(max=math.log(100.0)).exp()
        query, key = F.normalize(query, dim=-1) * scale, F.normalize(key, dim=-1)
    bias = attention.get_relative_position_bias()  # (1, heads, places, places)
    if rows or columns:
        mask = windows.mask(grid, window, (rows, columns), bias.device)
        bias = bias + mask.unsqueeze(1)
    mixed = windows.mix(
        padded,
        window,
        (rows, columns),
        lambda parts: flow.attend(query, key, parts, bias, scale=1.0 if cosine else None),
    )
    height, width = labels.grid
    return labels.with_map(observed.residual(labels.map, mixed[:, :height, :width]))


register(PatchMerging, PatchMergingV2, layer=False)(swin.merge)


def _swin_path(model: SwinTransformer) -> list[nn.Module]:
    embed, *stages = model.features
    modules = [stage if isinstance(stage, nn.Sequential) else [stage] for stage in stages]
    return [embed[0], *(module for stage in modules for module in stage)]


register_model(SwinTransformer, path=_swin_path, heads=lambda model, labels: labels.mean(1, keepdim=True))
