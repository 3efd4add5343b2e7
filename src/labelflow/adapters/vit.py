"""ViTs and what is built like them: EVA, NaFlexViT, LV-ViT, PiT, ViTs with relative positions, SAM's.

Plain ViTs: DeiT, DeiT III, distilled DeiT, CLIP's and SigLIP's, ViTs with registers, parallel blocks, or a
convolutional network in front.

EVA, EVA-02, DINOv3, Perception Encoders, ViTs with rotary embeddings: queries and keys are turned by their place.

NaFlexViT with plain images (B, C, H, W): blocks are a ViT's or, with rotary embeddings, EVA's.

LV-ViT: a ViT behind a convolutional stem.

PiT: a ViT whose patches are pooled between stages.

ViTs with relative position biases, from a table or a small MLP.

SAM's ViT: attention in windows, and over all of the map in a few blocks; a convolution at the end.
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import HybridEmbed, apply_rot_embed_cat
from timm.models.deit import VisionTransformerDistilled
from timm.models.eva import Eva, EvaBlock, EvaBlockPostNorm
from timm.models.naflexvit import NaFlexEmbeds, NaFlexVit
from timm.models.pit import ConvEmbedding, Pooling, PoolingVisionTransformer
from timm.models.vision_transformer import (
    Block,
    DiffParallelScalingBlock,
    ParallelScalingBlock,
    ParallelThingsBlock,
    ResPostBlock,
    VisionTransformer,
)
from timm.models.vision_transformer_relpos import RelPosBlock, ResPostRelPosBlock, VisionTransformerRelPos
from timm.models.vision_transformer_sam import Attention, VisionTransformerSAM, get_decomposed_rel_pos_bias
from timm.models.vision_transformer_sam import Block as SamBlock
from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters import attention, averages, patches, windows
from labelflow.adapters.registry import MODELS, Observed, Tap, register, register_model
from labelflow.flow import Labels
from labelflow.models import lvvit


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


register(EvaBlock, EvaBlockPostNorm, taps=taps)(block)
register_model(Eva, path=path, heads=heads, head_tokens=head_tokens)


@register(NaFlexEmbeds, layer=False)
def naflex_embed(module: NaFlexEmbeds, observed: Observed, labels: Labels) -> Labels:
    if module.dynamic_img_pad:
        labels = labels.with_map(flow.pad(labels.map, module.patch_size))
    return labels.with_map(flow.aggregate(labels.map, module.patch_size))


register_model(NaFlexVit, path=partial(path, embedding="embeds"), heads=heads, head_tokens=head_tokens)


@register(lvvit.ConvStem, layer=False)
def lvvit_embed(module: lvvit.ConvStem, observed: Observed, labels: Labels) -> Labels:
    """The stem is taken as the patch embedding that it replaces: a token's label is that of its own patch. The few
    pixels that its first convolutions see beyond the patch are left out."""
    if module.dynamic_img_pad:
        labels = labels.with_map(flow.pad(labels.map, module.patch_size))
    return labels.with_map(flow.aggregate(labels.map, module.patch_size))


# Blocks are ViT's, registered there: a divided residual branch does not weigh in Y ← Norm(Y + A·Y).
MODELS[lvvit.LVViT] = MODELS[VisionTransformer]


@register(ConvEmbedding, Pooling, layer=False)
def pit_merge(module: ConvEmbedding | Pooling, observed: Observed, labels: Labels) -> Labels:
    """The class token goes past the pooling."""
    return patches.merge(module.conv, labels)


def _pit_path(model: PoolingVisionTransformer) -> list[nn.Module]:
    stages = [[stage.pool, *stage.blocks] for stage in model.transformers]
    return [model.patch_embed, *(module for stage in stages for module in stage if module is not None)]


register_model(
    PoolingVisionTransformer,
    path=_pit_path,
    heads=lambda model, labels: labels[:, : model.num_tokens],  # the class token's head, and the distillation token's
    head_tokens=lambda model: model.num_tokens,
)


def _relpos_taps(block: RelPosBlock | ResPostRelPosBlock) -> dict[str, Tap]:
    module = block.attn
    return {
        "query": Tap(module.q_norm),
        "key": Tap(module.k_norm),
        "shared": Tap(module, "shared_rel_pos"),  # (1, A, N, N), if there is one for all blocks
        "weights": Tap(module.attn_drop, "input"),  # only where attention is not fused
        **attention.bias_taps(module.rel_pos),
    }


@register(RelPosBlock, ResPostRelPosBlock, taps=_relpos_taps)
def relpos_block(module: RelPosBlock | ResPostRelPosBlock, observed: Observed, labels: Labels) -> Labels:
    values = labels.values
    if "weights" in observed:
        mixed = flow.attention(observed["weights"][:, :, observed.rows], values)
    else:
        bias = observed["shared"] if "shared" in observed else attention.bias(module.attn.rel_pos, observed)
        bias = None if bias is None else bias[:, :, observed.rows]
        mixed = flow.attend(observed["query"][:, :, observed.rows], observed["key"], values, bias)
    return Labels(observed.residual(values[:, observed.rows], mixed), labels.grid)


register_model(VisionTransformerRelPos, path=path, heads=heads, head_tokens=head_tokens)


def _sam_taps(block: SamBlock) -> dict[str, Tap]:
    return {
        "query": Tap(block.attn.q_norm),  # (windows·A, places, D)
        "key": Tap(block.attn.k_norm),
        "weights": Tap(block.attn.attn_drop, "input"),  # only where attention is not fused
    }


def _sam_mix(module: Attention, observed: Observed, labels: Tensor, grid: tuple[int, int]) -> Tensor:
    """Attention over the places of each window, or of the map: (windows, places, K) -> (windows, places, K)"""
    heads = (-1, module.num_heads)
    if "weights" in observed:
        return flow.attention(observed["weights"].unflatten(0, heads), labels)
    query, key, bias = observed["query"], observed["key"], None
    if module.use_rel_pos:
        bias = get_decomposed_rel_pos_bias(
            query, module.rel_pos_h.to(query.dtype), module.rel_pos_w.to(query.dtype), grid, grid
        ).unflatten(0, heads)
    elif module.rope is not None:
        query, key = (apply_rot_embed_cat(tokens, module.rope.get_embed()).type_as(tokens) for tokens in (query, key))
    return flow.attend(query.unflatten(0, heads), key.unflatten(0, heads), labels, bias)


@register(SamBlock, taps=_sam_taps)
def sam_block(module: SamBlock, observed: Observed, labels: Labels) -> Labels:
    size = (module.window_size, module.window_size) if module.window_size else labels.grid
    mixed = windows.mix(labels.map, size, (0, 0), lambda parts: _sam_mix(module.attn, observed, parts, size))
    return labels.with_map(observed.residual(labels.map, mixed))


def _sam_path(model: VisionTransformerSAM) -> list[nn.Module]:
    """The neck behind the blocks is convolutions without a shortcut."""
    return [*path(model), *averages.convolutions_in(model.neck)]


averages.register_average(VisionTransformerSAM, path=_sam_path)
