"""EfficientFormer, v1 and v2: PoolFormer's pooling or convolutions first, attention in the end."""

import torch.nn.functional as F
from timm.models import efficientformer as v1
from timm.models import efficientformer_v2 as v2
from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters import convolutions, graph, metaformer, patches
from labelflow.adapters.averages import convolutions_in, present, register_average, staged
from labelflow.adapters.registry import Observed, Tap, register
from labelflow.flow import Labels

graph.follow(v1.MetaBlock1d, v1.MetaBlock2d, v2.EfficientFormerV2Block)


@register(v1.Pooling)
def pooling(module: v1.Pooling, observed: Observed, labels: Labels) -> Labels:
    return labels.with_map(metaformer.pooled(module.pool, labels.map))


@register(v1.Attention, taps=lambda module: {"qkv": Tap(module.qkv)})
def attention(module: v1.Attention, observed: Observed, labels: Labels) -> Labels:
    qkv = observed["qkv"].unflatten(-1, (module.num_heads, -1)).transpose(1, 2)  # (B, A, N, 2·D + value width)
    query, key = qkv.split(module.key_dim, -1)[:2]
    bias = module.attention_biases[:, module.attention_bias_idxs].unsqueeze(0)  # (1, A, N, N)
    return Labels(flow.attend(query, key, labels.values, bias), labels.grid)


@register(v2.Attention2d, taps=lambda module: {"weights": Tap(module.talking_head2)})  # signed: (B, A, N, N)
def attention_2d(module: v2.Attention2d, observed: Observed, labels: Labels) -> Labels:
    """Talking heads, and a convolution of the values; both on a coarser grid in earlier stages."""
    values = labels.map
    if module.stride_conv is not None:
        values = convolutions.convolve(module.stride_conv.conv, values, still=False)
    mixed = flow.spatial(observed["weights"], values.flatten(1, 2).unsqueeze(1)).mean(1).view_as(values)
    mixed = (mixed + convolutions.convolve(module.v_local.conv, values, still=False)) / 2
    if module.upsample is not None:
        mixed = F.interpolate(mixed.permute(0, 3, 1, 2), labels.grid, mode="bilinear").permute(0, 2, 3, 1)
    return labels.with_map(mixed)


def _strided(module: v2.Attention2dDownsample, observed: Observed, labels: Labels) -> Tensor:
    """Attention from a coarser grid, and a convolution of the values with a stride: (B, i, j, K)"""
    local = convolutions.convolve(module.v_local.conv, labels.map, still=False)
    query, key = (observed[name].unflatten(1, (module.num_heads, -1)).flatten(3).mT for name in ("query", "key"))
    bias = module.attention_biases[:, module.attention_bias_idxs].unsqueeze(0)  # (1, A, N/4, N)
    return (flow.attend(query, key, labels.values, bias).view_as(local) + local) / 2


def _taps(module: v2.Downsample) -> dict[str, Tap]:
    return {} if module.attn is None else {"query": Tap(module.attn.q), "key": Tap(module.attn.k)}


@register(v2.Downsample, taps=_taps, layer=False)
def merge(module: v2.Downsample, observed: Observed, labels: Labels) -> Labels:
    merged = patches.merge(module.conv.conv, labels)
    if module.attn is None:
        return merged
    return merged.with_map((merged.map + _strided(module.attn, observed, labels)) / 2)


def _path_v1(model: v1.EfficientFormer) -> list[nn.Module]:
    if not isinstance(model.stages[-1].blocks[-1], v1.MetaBlock1d):
        raise ValueError("EfficientFormer averages over tokens only if it ends with attention: num_vit=1 or more")
    return [module for module in staged(model) if not isinstance(module, v1.Flat)]


def _path_v2(model: v2.EfficientFormerV2) -> list[nn.Module]:
    stages = [present(stage.downsample, *stage.blocks) for stage in model.stages]
    return [*convolutions_in(model.stem), *(module for stage in stages for module in stage)]


register_average(v1.EfficientFormer, path=_path_v1, pool=lambda model: model.global_pool)
register_average(v2.EfficientFormerV2, path=_path_v2, pool=lambda model: model.global_pool)
