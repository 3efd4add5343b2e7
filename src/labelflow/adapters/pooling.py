"""Attention pooling: the pooled token joins in front of the others, with the labels of what it attends to."""

import torch
from timm.layers import AttentionPool2d, AttentionPoolLatent, AttentionPoolPrr, RotAttentionPool2d, apply_rot_embed_cat
from torch import Tensor

from labelflow import flow
from labelflow.adapters.registry import Observed, Tap, register
from labelflow.flow import Labels


def join(pooled: Tensor, labels: Labels) -> Labels:
    """A pooled token's label (B, 1, K) in front of those of the tokens that it was made of."""
    return Labels(torch.cat([pooled, labels.values], 1), labels.grid)


@register(
    AttentionPoolLatent,
    taps=lambda module: {"query": Tap(module.q_norm), "key": Tap(module.k_norm)},  # (B, A, latents, D), (B, A, M, D)
    layer=False,
)
def latent(module: AttentionPoolLatent, observed: Observed, labels: Labels) -> Labels:
    tokens = labels.values[:, -observed["key"].shape[2] :]  # the model may have taken its class token off
    mixed = flow.attend(observed["query"], observed["key"], tokens)  # (B, latents, K)
    return join(mixed[:, :1] if module.pool == "token" else mixed.mean(1, keepdim=True), labels)


@register(AttentionPoolPrr, taps=lambda module: {"tokens": Tap(module.pre_norm)}, layer=False)
def refined(module: AttentionPoolPrr, observed: Observed, labels: Labels) -> Labels:
    """Tokens attend to one another once more, without projections or a shortcut, before they are pooled."""
    tokens = observed["tokens"].unflatten(-1, (module.num_heads, -1)).transpose(1, 2)  # (B, A, N, D)
    query = tokens[:, :, :1] if module.pool == "token" else tokens
    mixed = flow.attend(query, tokens, labels.values[:, -tokens.shape[2] :])
    return join(mixed.mean(1, keepdim=True), labels)


def _taps_of_map_pool(module: AttentionPool2d | RotAttentionPool2d) -> dict[str, Tap]:
    if module.qkv is None:
        return {"query": Tap(module.q), "key": Tap(module.k)}  # (B, 1 + N, A·D)
    return {"qkv": Tap(module.qkv)}


@register(AttentionPool2d, RotAttentionPool2d, taps=_taps_of_map_pool, layer=False)
def of_map(module: AttentionPool2d | RotAttentionPool2d, observed: Observed, labels: Labels) -> Labels:
    """The mean of all places, or a class token, attends to all places and itself."""
    query, key = (observed["query"], observed["key"]) if module.qkv is None else observed["qkv"].chunk(3, -1)[:2]
    query, key = (part.unflatten(-1, (module.num_heads, -1)).transpose(1, 2) for part in (query, key))
    if isinstance(module, RotAttentionPool2d):
        embed = module.pos_embed.get_embed(labels.grid)
        turn = torch.cat(embed, -1) if isinstance(embed, tuple) else embed
        key = torch.cat([key[:, :, :1], apply_rot_embed_cat(key[:, :, 1:], turn)], 2)
    first = labels.values.mean(1) if module.cls_token is None else observed.image_label
    joined = torch.cat([first.unsqueeze(1), labels.values], 1)
    return join(flow.attend(query[:, :, :1], key, joined), labels)
