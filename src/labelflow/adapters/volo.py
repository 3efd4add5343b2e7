"""VOLO: outlook attention, in which each window mixes its own places; then plain attention, then class attention."""

import torch.nn.functional as F
from timm.models.volo import VOLO, ClassBlock, Downsample, Outlooker, PatchEmbed, Transformer
from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters import cait, patches
from labelflow.adapters.registry import Observed, Tap, register, register_model
from labelflow.flow import Labels


@register(PatchEmbed, layer=False)
def embed(module: PatchEmbed, observed: Observed, labels: Labels) -> Labels:
    """As LV-ViT's stem, it is taken as the patch embedding that it replaces."""
    first = 1 if module.conv is None else module.conv[0].stride[0]
    side = first * module.proj.stride[0]
    return labels.with_map(flow.aggregate(labels.map, (side, side)))


@register(Outlooker, taps=lambda block: {"weights": Tap(block.attn.attn_drop, "input")})
def outlooker(module: Outlooker, observed: Observed, labels: Labels) -> Labels:
    """Each place's output is the sum over the windows that hold it; what lies outside the map has no label."""
    attention = module.attn
    options = {"kernel_size": attention.kernel_size, "padding": attention.padding, "stride": attention.stride}
    weights = observed["weights"].float().mean(1)  # (B, A, windows, r·r, r·r) -> (B, windows, r·r, r·r)
    parts = F.unfold(labels.map.permute(0, 3, 1, 2), **options)  # (B, K·r·r, windows)
    parts = parts.unflatten(1, (-1, weights.shape[-1])).permute(0, 3, 2, 1)  # (B, windows, r·r, K)
    mixed = flow.product(weights, parts).permute(0, 3, 2, 1).flatten(1, 2)
    mixed = F.fold(mixed, labels.grid, **options).permute(0, 2, 3, 1)
    return labels.with_map(observed.residual(labels.map, flow.normalise(mixed)))


def _taps(block: Transformer) -> dict[str, Tap]:
    return {"qkv": Tap(block.attn.qkv), "weights": Tap(block.attn.attn_drop, "input")}  # weights: if not fused


@register(Transformer, taps=_taps)
def block(module: Transformer, observed: Observed, labels: Labels) -> Labels:
    if "weights" in observed:
        mixed = flow.attention(observed["weights"], labels.values)
    else:
        qkv = observed["qkv"].flatten(1, 2).unflatten(-1, (3, module.attn.num_heads, -1))  # from (B, h, w, 3·A·D)
        query, key, _ = qkv.permute(2, 0, 3, 1, 4)
        mixed = flow.attend(query, key, labels.values)
    return Labels(observed.residual(labels.values, mixed), labels.grid)


@register(ClassBlock, taps=lambda block: {"weights": Tap(block.attn.attn_drop, "input")})
def class_block(module: ClassBlock, observed: Observed, labels: Labels) -> Labels:
    return cait.with_class(observed, labels, flow.attention(observed["weights"], labels.values))


@register(Downsample, layer=False)
def merge(module: Downsample, observed: Observed, labels: Labels) -> Labels:
    return patches.merge(module.proj, labels)


def _path(model: VOLO) -> list[nn.Module]:
    stages = [stage if isinstance(stage, nn.Sequential) else [stage] for stage in model.network]
    return [model.patch_embed, *(module for stage in stages for module in stage), *(model.post_network or [])]


def _heads(model: VOLO, labels: Tensor) -> Tensor:
    """Half of the best token's scores is added to the class token's, whose label it is, as LV-ViT's."""
    return labels[:, :1] if model.global_pool == "token" else labels.mean(1, keepdim=True)


register_model(VOLO, path=_path, heads=_heads, head_tokens=cait.head_tokens)
