"""Attention pooling: the pooled token joins in front of the others, with the labels of what it attends to."""

import torch
from timm.layers import AttentionPoolLatent
from torch import Tensor

from labelflow import flow
from labelflow.adapters.registry import Seen, Tap, register
from labelflow.flow import Labels


def join(pooled: Tensor, labels: Labels) -> Labels:
    """A pooled token's label (B, 1, K) in front of those of the tokens that it was made of."""
    return Labels(torch.cat([pooled, labels.values], 1), labels.grid)


@register(
    AttentionPoolLatent,
    taps=lambda module: {"query": Tap(module.q_norm), "key": Tap(module.k_norm)},  # (B, A, latents, D), (B, A, M, D)
    layer=False,
)
def latent(module: AttentionPoolLatent, seen: Seen, labels: Labels) -> Labels:
    tokens = labels.values[:, -seen["key"].shape[2] :]  # the model may have taken its class token off
    mixed = flow.attend(seen["query"], seen["key"], tokens)  # (B, latents, K)
    return join(mixed[:, :1] if module.pool == "token" else mixed.mean(1, keepdim=True), labels)
