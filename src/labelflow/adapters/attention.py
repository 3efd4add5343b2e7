"""timm's attention modules, which several families share: what to watch of them, and how they mix labels.

Shapes: B batch, A heads, N tokens, D head width, K sources.
"""

from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import Attention, AttentionRope, DiffAttention, RelPosMlp, apply_rot_embed_cat
from timm.models.eva import EvaAttention
from timm.models.vision_transformer import DiffParallelScalingBlock
from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters.registry import Observed, Tap

ROTARY = (AttentionRope, EvaAttention)
DIFFERENTIAL = (DiffAttention, DiffParallelScalingBlock)


def taps(attention: Any, name: str = "") -> dict[str, Tap]:
    """`name` tells one of several attention modules of a block from the others."""
    if type(attention) not in (Attention, *ROTARY, *DIFFERENTIAL):
        raise ValueError(f"labelflow follows labels through timm's attention modules, not {type(attention).__name__}")
    watched = {
        "query": Tap(attention.q_norm),
        "key": Tap(attention.k_norm),
        "weights": Tap(attention.attn_drop, "input"),  # only where attention is not fused
    }
    if isinstance(attention, ROTARY):
        watched["rope"] = Tap(attention, "rope")
    return {name + tap: watch for tap, watch in watched.items()}


def mix(attention: Any, observed: Observed, labels: Tensor, name: str = "") -> Tensor:
    """Eq. 9: (B, N, K) -> (B, N, K), or fewer tokens, as `observed.rows` wants them."""
    if isinstance(attention, DIFFERENTIAL):
        return _mix_difference(attention, observed, labels, name)
    if name + "weights" in observed:
        return flow.attention(observed[name + "weights"][:, :, observed.rows], labels)
    query, key = observed[name + "query"], observed[name + "key"]
    if isinstance(attention, ROTARY) and name + "rope" in observed:
        query, key = (_rotate(attention, tokens, observed[name + "rope"]) for tokens in (query, key))
    if isinstance(attention, AttentionRope) and attention.num_kv_groups > 1:  # heads in groups that share their keys
        key = key.repeat_interleave(attention.num_kv_groups, 1)
    return flow.attend(query[:, :, observed.rows], key, labels)


def bias_taps(rel_pos: nn.Module | None, name: str = "") -> dict[str, Tap]:
    """A position bias that an MLP makes has dropout: what it drew is seen, not drawn again."""
    return {name + "bias": Tap(rel_pos.bias_act)} if isinstance(rel_pos, RelPosMlp) else {}


def bias(rel_pos: nn.Module | None, observed: Observed, name: str = "") -> Tensor | None:
    """The bias that a module of relative positions adds to the scores: (1, A, N, N)"""
    if isinstance(rel_pos, RelPosMlp):
        prefix, gain = rel_pos.prefix_tokens, rel_pos.bias_gain
        return F.pad(observed[name + "bias"].unsqueeze(0) * (1 if gain is None else gain), (prefix, 0, prefix, 0))
    return None if rel_pos is None else rel_pos.get_bias()  # type: ignore[operator]


def _rotate(attention: Any, tokens: Tensor, rope: Tensor) -> Tensor:
    """Queries or keys as the model turns them by their place; tokens without a place stay: (B, A, N, D)"""
    prefix, placed = tokens.split([attention.num_prefix_tokens, tokens.shape[2] - attention.num_prefix_tokens], 2)
    turned = apply_rot_embed_cat(placed, rope, half=attention.rotate_half).type_as(tokens)
    return torch.cat([prefix, turned], 2)


def _mix_difference(attention: Any, observed: Observed, labels: Tensor, name: str) -> Tensor:
    """Differential attention, W = A₁ - λ·A₂ for each head: the mean over heads of Norm(|W|)·Y."""
    if name + "weights" in observed:
        weights = observed[name + "weights"][:, :, observed.rows].float()  # (B, 2·heads, N, N)
    else:
        query, key = observed[name + "query"][:, :, observed.rows].float(), observed[name + "key"].float()
        weights = (query * attention.scale @ key.mT).softmax(-1)
    positive, negative = weights.unflatten(1, (-1, 2)).unbind(2)
    return flow.spatial(positive - attention._compute_lambda() * negative, labels.unsqueeze(1)).mean(1)
