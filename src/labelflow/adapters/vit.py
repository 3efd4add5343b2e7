"""Plain ViTs: DeiT, DeiT III, distilled DeiT, CLIP's and SigLIP's, ViTs with registers, parallel blocks, or a
convolutional network in front."""

from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import HybridEmbed
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import (
    Block,
    DiffParallelScalingBlock,
    ParallelScalingBlock,
    ParallelThingsBlock,
    ResPostBlock,
    VisionTransformer,
)
from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters import attention
from labelflow.adapters.registry import Observed, Tap, register, register_model
from labelflow.flow import Labels


def taps(block: Block) -> dict[str, Tap]:
    return attention.taps(block.attn)


@register(Block, ResPostBlock, taps=taps)
def block(module: Block, observed: Observed, labels: Labels) -> Labels:
    """Eq. 11; the MLP half of a block leaves labels as they are."""
    mixed = attention.mix(module.attn, observed, labels.values)
    return Labels(observed.residual(labels.values[:, observed.rows], mixed), labels.grid)


def _taps_of_parallel(block: ParallelScalingBlock) -> dict[str, Tap]:
    return {
        "query": Tap(block.q_norm),  # (B, N, A, D)
        "key": Tap(block.k_norm),
        "weights": Tap(block.attn_drop, "input"),  # only where attention is not fused
    }


@register(ParallelScalingBlock, taps=_taps_of_parallel)
def parallel(module: ParallelScalingBlock, observed: Observed, labels: Labels) -> Labels:
    """The MLP beside attention leaves labels as they are, like the one behind it does: it has no say in Norm."""
    if "weights" in observed:
        mixed = flow.attention(observed["weights"][:, :, observed.rows], labels.values)
    else:
        mixed = flow.attend(
            observed["query"][:, observed.rows].transpose(1, 2), observed["key"].transpose(1, 2), labels.values
        )
    return Labels(observed.residual(labels.values[:, observed.rows], mixed), labels.grid)


@register(DiffParallelScalingBlock, taps=attention.taps)
def differential(module: DiffParallelScalingBlock, observed: Observed, labels: Labels) -> Labels:
    mixed = attention.mix(module, observed, labels.values)
    return Labels(observed.residual(labels.values[:, observed.rows], mixed), labels.grid)


def _taps_of_things(block: ParallelThingsBlock) -> dict[str, Tap]:
    several = [attention.taps(branch.attn, f"{i}.") for i, branch in enumerate(block.attns)]
    return {name: tap for taps in several for name, tap in taps.items()}


@register(ParallelThingsBlock, taps=_taps_of_things)
def things(module: ParallelThingsBlock, observed: Observed, labels: Labels) -> Labels:
    """Several attention branches in one sum with the shortcut: Y ← Norm(Y + A₁·Y + A₂·Y)."""
    terms = [attention.mix(branch.attn, observed, labels.values, f"{i}.") for i, branch in enumerate(module.attns)]
    if observed.keep_residual:
        terms.append(labels.values[:, observed.rows])
    return Labels(torch.stack(terms).mean(0), labels.grid)


@register(HybridEmbed, taps=lambda module: {"map": Tap(module.proj)}, layer=False)
def hybrid(module: HybridEmbed, observed: Observed, labels: Labels) -> Labels:
    """A convolutional network is taken as the patch embedding that it replaces: a token's label is that of its patch,
    however far the network looks beyond it."""
    height, width = observed["map"].shape[2:]
    rows = F.adaptive_avg_pool2d(labels.map.permute(0, 3, 1, 2), (height, None))  # one side, then the other: sums of
    pooled = F.adaptive_avg_pool2d(rows, (height, width))  # a thousand pixels would lose the last digits
    return labels.with_map(pooled.permute(0, 2, 3, 1))


def path(model: Any, embedding: str = "patch_embed") -> list[nn.Module]:
    """Of a VisionTransformer, and of models that are built like one."""
    if not isinstance(getattr(model, "patch_drop", None), nn.Identity | None):
        raise ValueError("patch dropout hides which tokens are left: create the model with patch_drop_rate=0")
    pool = getattr(model, "attn_pool", None)
    return [getattr(model, embedding), *model.blocks, *([] if pool is None else [pool])]


def heads(model: Any, labels: Tensor) -> Tensor:
    if getattr(model, "attn_pool", None) is not None or model.global_pool == "token":  # a pooled token is in front, too
        return labels[:, :1]
    first = 0 if getattr(model, "pool_include_prefix", False) else model.num_prefix_tokens
    return labels[:, first:].mean(1, keepdim=True)


def head_tokens(model: Any) -> int:
    if getattr(model, "attn_pool", None) is not None:
        return 0
    if model.global_pool not in ("token", "avg"):
        raise ValueError(
            f"labelflow follows labels to a class token, an average or attention pooling, not to "
            f"global_pool={model.global_pool!r}"
        )
    return 1 if model.global_pool == "token" else 0


register_model(VisionTransformer, path=path, heads=heads, head_tokens=head_tokens)
register_model(
    VisionTransformerDistilled,  # the class token's head, and the distillation token's
    path=path,
    heads=lambda model, labels: labels[:, :2],
    head_tokens=lambda model: 2,
)
