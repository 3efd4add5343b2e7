"""The vision encoders of Qwen3-VL, DeepSeek-V4 and Gemma 4 as classifiers, with their projectors or without: these
merge tokens k×k before they are averaged. Encoders alone have no classifier, and no adapter."""

from typing import Any

from timm.models.deepseek_vit import DeepseekVitAligner, DeepseekVitBlock, DeepseekVitClassifier, DeepseekVitEncoder
from timm.models.gemma4_vit import (
    Gemma4Block,
    Gemma4PatchEmbed,
    Gemma4VisionPooler,
    Gemma4VitClassifier,
    Gemma4VitEncoder,
    apply_multidimensional_rope,
)
from timm.models.qwen3_vit import Qwen3VitClassifier, Qwen3VitEncoder, Qwen3VitPatchMerger
from torch import nn

from labelflow import flow
from labelflow.adapters import vit  # which registers Qwen3's blocks, too
from labelflow.adapters.averages import register_average
from labelflow.adapters.registry import Observed, Tap, refuse, register
from labelflow.flow import Labels

register(DeepseekVitBlock, taps=vit.taps)(vit.block)


@register(Qwen3VitPatchMerger, layer=False)
def merge(module: Qwen3VitPatchMerger, observed: Observed, labels: Labels) -> Labels:
    return labels.with_map(flow.aggregate(labels.map, (module.merge_size, module.merge_size)))


@register(DeepseekVitAligner, layer=False)
def align(module: DeepseekVitAligner, observed: Observed, labels: Labels) -> Labels:
    size = (module.downsample_ratio, module.downsample_ratio)
    return labels.with_map(flow.aggregate(flow.pad(labels.map, size), size))


@register(Gemma4VisionPooler, layer=False)
def pool(module: Gemma4VisionPooler, observed: Observed, labels: Labels) -> Labels:
    return labels.with_map(flow.aggregate(labels.map, (module.pooling_kernel_size, module.pooling_kernel_size)))


@register(Gemma4PatchEmbed, layer=False)
def embed(module: Gemma4PatchEmbed, observed: Observed, labels: Labels) -> Labels:
    return labels.with_map(flow.aggregate(labels.map, module.patch_size))


def _taps(block: Gemma4Block) -> dict[str, Tap]:
    attention = block.attn
    return {
        "query": Tap(attention.q_norm),  # (B, N, A, D)
        "key": Tap(attention.k_norm),
        "cosine": Tap(attention, "rope_cos"),  # (B, N, D)
        "sine": Tap(attention, "rope_sin"),
        "weights": Tap(attention.attn_drop, "input"),  # only where attention is not fused
    }


@register(Gemma4Block, taps=_taps)
def block(module: Gemma4Block, observed: Observed, labels: Labels) -> Labels:
    if "weights" in observed:
        mixed = flow.attention(observed["weights"], labels.values)
    else:
        turn = (observed["cosine"], observed["sine"])
        query, key = (apply_multidimensional_rope(observed[tap], *turn).transpose(1, 2) for tap in ("query", "key"))
        key = key.repeat_interleave(module.attn.num_kv_groups, 1)
        mixed = flow.attend(query, key, labels.values, scale=1.0)
    return Labels(observed.residual(labels.values, mixed), labels.grid)


def _path(model: Any) -> list[nn.Module]:
    encoder = model.encoder
    projectors = [getattr(encoder, name, None) for name in ("aligner", "merger")]
    if encoder.global_pool == "soft":  # Gemma's
        projectors = [encoder.pooler]
    return [encoder.patch_embed, *encoder.blocks, *(module for module in projectors if module is not None)]


refuse(DeepseekVitEncoder, Gemma4VitEncoder, Qwen3VitEncoder, why="it has no classifier; the classifier models do")
register_average(
    DeepseekVitClassifier, Gemma4VitClassifier, Qwen3VitClassifier, path=_path, pool=lambda model: model.global_pool
)
