"""Attention over a map inside a convolutional block: MobileNetV4's, BoTNet's, HaloNet's, LambdaNet's.

These modules have no shortcut of their own, and say only where a place's content comes from.
Shapes: B batch, A heads, N = h·w places, M keys, D head width, K sources.
"""

import torch
import torch.nn.functional as F
from timm.layers import Attention2d, MultiQueryAttention2d
from timm.layers.bottleneck_attn import BottleneckAttn
from timm.layers.halo_attn import HaloAttn
from timm.layers.lambda_layer import LambdaLayer, rel_pos_indices
from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters import convolutions
from labelflow.adapters.registry import Observed, Tap, register
from labelflow.flow import Labels


def _pool(module: BottleneckAttn | HaloAttn | LambdaLayer, labels: Labels) -> Labels:
    """What these modules do with a stride of 2, behind attention."""
    if isinstance(module.pool, nn.Identity):
        return labels
    return labels.with_map(convolutions.pool(module.pool, labels.map, still=False))


def _idle(module: BottleneckAttn | LambdaLayer, observed: Observed, labels: Labels) -> Labels:
    return _pool(module, labels)


@register(Attention2d, taps=lambda module: {"qkv": Tap(module.qkv)}, layer=False)
def attention(module: Attention2d, observed: Observed, labels: Labels) -> Labels:
    qkv = observed["qkv"].flatten(2)  # (B, 3·A·D, N)
    if module.head_first:
        query, key, _ = qkv.unflatten(1, (module.num_heads, -1)).chunk(3, 2)
    else:
        query, key, _ = qkv.unflatten(1, (3, module.num_heads, -1)).unbind(1)
    return Labels(flow.attend(query.mT, key.mT, labels.values), labels.grid)


@register(
    MultiQueryAttention2d,
    taps=lambda module: {"query": Tap(module.query), "key": Tap(module.key)},  # (B, A·D, i, j), (B, D, m, n)
    layer=False,
)
def multi_query(module: MultiQueryAttention2d, observed: Observed, labels: Labels) -> Labels:
    """Keys, and maybe queries, stand on a coarser grid."""
    query = observed["query"].flatten(2).unflatten(1, (module.num_heads, -1)).mT
    key = observed["key"].flatten(2).unsqueeze(1).mT.expand(-1, module.num_heads, -1, -1)
    sources = labels.map
    if module.kv_stride > 1:
        sources = convolutions.convolve(module.value.down_conv, sources, still=False)
    mixed = flow.attend(query, key, sources.flatten(1, 2)).unflatten(1, observed["query"].shape[2:])
    if module.has_query_strides:
        upsampled = F.interpolate(mixed.permute(0, 3, 1, 2), scale_factor=module.query_strides, mode="bilinear")
        mixed = upsampled.permute(0, 2, 3, 1)
    return labels.with_map(mixed)


@register(
    BottleneckAttn,
    taps=lambda module: {"qkv": Tap(module.qkv), "bias": Tap(module.pos_embed)},  # bias (B·A, N, N)
    layer=False,
    idle=_idle,
)
def bottleneck(module: BottleneckAttn, observed: Observed, labels: Labels) -> Labels:
    width = module.dim_out_qk
    query, key, _ = observed["qkv"].flatten(2).split([width, width, module.dim_out_v], 1)  # (B, A·D, N)
    query, key = (part.unflatten(1, (module.num_heads, -1)).mT for part in (query, key))
    bias = observed["bias"].unflatten(0, (-1, module.num_heads)) * (module.scale if module.scale_pos_embed else 1)
    return _pool(module, Labels(flow.attend(query, key, labels.values, bias, module.scale), labels.grid))


def _halo_idle(module: HaloAttn, observed: Observed, labels: Labels) -> Labels:
    step = module.block_stride
    return _pool(module, labels.with_map(labels.map[:, ::step, ::step]))


@register(
    HaloAttn,
    taps=lambda module: {"query": Tap(module.q), "key_value": Tap(module.kv), "bias": Tap(module.pos_embed)},
    layer=False,
    idle=_halo_idle,
)
def halo(module: HaloAttn, observed: Observed, labels: Labels) -> Labels:
    """Blocks of places attend to a window around them; what lies beyond the map has no label."""
    heads, size, reach = module.num_heads, module.block_size_ds, module.win_size
    query = observed["query"].unflatten(1, (heads, -1))  # (B, A, D, i, j)
    query = query.unfold(3, size, size).unfold(4, size, size)  # (B, A, D, rows, columns, size, size)
    rows, columns = query.shape[3:5]
    query = query.flatten(5).permute(0, 3, 4, 1, 5, 2).flatten(0, 2)  # (B·rows·columns, A, size², D)

    def windows(tensor: Tensor) -> Tensor:
        """(B, channels, h, w) -> (B·rows·columns, window², channels)"""
        halo = F.pad(tensor, [module.halo_size] * 4)
        parts = halo.unfold(2, reach, module.block_size).unfold(3, reach, module.block_size)
        return parts.flatten(4).permute(0, 2, 3, 4, 1).flatten(0, 2)

    key = windows(observed["key_value"]).unflatten(2, (heads, -1))[..., : module.dim_head_qk].transpose(1, 2)
    bias = (
        observed["bias"].unflatten(0, (-1, heads)).transpose(1, 2).flatten(0, 1)
    )  # (B·rows·columns, A, size², window²)
    bias = bias * (module.scale if module.scale_pos_embed else 1)
    sources = windows(labels.map.permute(0, 3, 1, 2))
    mixed = flow.attend(query, key, sources, bias, module.scale)  # (B·rows·columns, size², K)
    mixed = mixed.unflatten(0, (-1, rows, columns)).unflatten(3, (size, size)).transpose(2, 3)
    return _pool(module, labels.with_map(mixed.flatten(3, 4).flatten(1, 2)))


@register(
    LambdaLayer, taps=lambda module: {"qkv": Tap(module.qkv), "query": Tap(module.norm_q)}, layer=False, idle=_idle
)
def lambdas(module: LambdaLayer, observed: Observed, labels: Labels) -> Labels:
    """For each place a linear function of all values, from their content and their relative places: q·softmax(k) + q·E,
    a signed matrix for each head."""
    height, width = labels.grid
    query = observed["query"].float().flatten(2).unflatten(1, (module.num_heads, -1)).mT  # (B, A, N, D)
    start = module.num_heads * module.dim_qk
    key = observed["qkv"][:, start : start + module.dim_qk].float().flatten(2).softmax(-1)  # (B, D, N)
    if module.conv_lambda is None:
        table = module.pos_emb.float()
    else:  # a kernel (D, 1, r, r, 1), which sees less of the map, or more
        reach = module.conv_lambda.kernel_size[0] // 2
        kernel = module.conv_lambda.weight.float()[:, 0, :, :, 0]
        table = F.pad(kernel, [width - 1 - reach] * 2 + [height - 1 - reach] * 2).permute(1, 2, 0)
    rows, columns = rel_pos_indices(labels.grid, device=table.device)
    places = torch.einsum("band,nmd->banm", query, table[rows, columns])
    mixed = flow.spatial(query @ key.unsqueeze(1) + places, labels.values.unsqueeze(1)).mean(1)
    return _pool(module, Labels(mixed, labels.grid))
