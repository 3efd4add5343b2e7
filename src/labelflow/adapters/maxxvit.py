"""MaxViT, CoAtNet and MaxxViT: convolutional blocks, then attention among windows, grids or all tokens of a map.

Each part of a MaxViT block is a layer of its own.
"""

from timm.models.maxxvit import (
    Attention2d,
    AttentionCl,
    ConvNeXtBlock,
    Downsample2d,
    MaxxVit,
    MaxxVitBlock,
    MbConvBlock,
    ParallelMaxxVitBlock,
    ParallelPartitionAttention,
    PartitionAttention2d,
    PartitionAttentionCl,
    TransformerBlock2d,
)
from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters import convolutions, windows
from labelflow.adapters.attention import bias as relative_bias
from labelflow.adapters.attention import bias_taps
from labelflow.adapters.averages import present, register_average
from labelflow.adapters.registry import Observed, Tap, register
from labelflow.flow import Labels


def _pool(module: nn.Module, labels: Tensor) -> Tensor:
    """What a shortcut or another place where a block may pool leaves of a map: (B, h, w, K) -> (B, i, j, K)"""
    return convolutions.pool(module.pool, labels, still=False) if isinstance(module, Downsample2d) else labels


def _shortcut(module: MbConvBlock | ConvNeXtBlock | TransformerBlock2d, observed: Observed, labels: Labels) -> Labels:
    return labels.with_map(_pool(module.shortcut, labels.map))


@register(MbConvBlock, ConvNeXtBlock, idle=_shortcut)
def convolution(module: MbConvBlock | ConvNeXtBlock, observed: Observed, labels: Labels) -> Labels:
    mixed = _pool(module.down, labels.map)
    steps = [module.conv_dw] if isinstance(module, ConvNeXtBlock) else [module.conv1_1x1, module.conv2_kxk]
    for step in steps:
        mixed = convolutions.convolve(step, mixed, still=False)
    return labels.with_map(observed.residual(_pool(module.shortcut, labels.map), mixed))


def _watch(attention: Attention2d | AttentionCl, name: str = "") -> dict[str, Tap]:
    return {
        name + "qkv": Tap(attention.qkv),
        name + "weights": Tap(attention.attn_drop, "input"),  # only where attention is not fused
        **bias_taps(attention.rel_pos, name),
    }


def _attend(attention: Attention2d | AttentionCl, observed: Observed, labels: Tensor, name: str = "") -> Tensor:
    """Eq. 9, in windows (B·windows, places, K) or whole maps"""
    if name + "weights" in observed:
        return flow.attention(observed[name + "weights"], labels)
    first = isinstance(attention, Attention2d)
    qkv = (
        observed[name + "qkv"].flatten(2) if first else observed[name + "qkv"].flatten(1, 2).mT
    )  # (B·windows, 3·C, places)
    heads, width = attention.num_heads, attention.dim_head
    parts = qkv.unflatten(1, (heads, 3, width) if attention.head_first else (3, heads, width))
    query, key, _ = parts.unbind(2 if attention.head_first else 1)  # (B·windows, A, D, places)
    bias = relative_bias(attention.rel_pos, observed, name)
    if bias is not None:
        bias = bias.reshape(1, heads, labels.shape[1], labels.shape[1])
    return flow.attend(query.mT, key.mT, labels, bias)


@register(TransformerBlock2d, taps=lambda block: _watch(block.attn), idle=_shortcut)
def transformer(module: TransformerBlock2d, observed: Observed, labels: Labels) -> Labels:
    labels = _shortcut(module, observed, labels)  # the branch pools alike
    return Labels(observed.residual(labels.values, _attend(module.attn, observed, labels.values)), labels.grid)


def _in_windows(
    attention: AttentionCl, observed: Observed, labels: Tensor, size: tuple[int, int], name: str = ""
) -> Tensor:
    return windows.mix(labels, size, (0, 0), lambda parts: _attend(attention, observed, parts, name))


def _in_grids(
    attention: AttentionCl, observed: Observed, labels: Tensor, size: tuple[int, int], name: str = ""
) -> Tensor:
    """Attention among size[0]·size[1] places that are spread evenly over the map: (B, h, w, K) -> (B, h, w, K)"""
    spread = labels.unflatten(2, (size[1], -1)).unflatten(1, (size[0], -1))  # (B, r, i, s, j, K)
    i, j = spread.shape[2], spread.shape[4]
    parts = spread.permute(0, 2, 4, 1, 3, 5).flatten(0, 2).flatten(1, 2)  # (B·i·j, r·s, K)
    mixed = _attend(attention, observed, parts, name).unflatten(1, size).unflatten(0, (-1, i, j))
    return mixed.permute(0, 3, 1, 4, 2, 5).flatten(3, 4).flatten(1, 2)


@register(PartitionAttentionCl, PartitionAttention2d, taps=lambda block: _watch(block.attn))
def partition(module: PartitionAttentionCl | PartitionAttention2d, observed: Observed, labels: Labels) -> Labels:
    mix = _in_windows if module.partition_block else _in_grids
    mixed = mix(module.attn, observed, labels.map, module.partition_size)
    return labels.with_map(observed.residual(labels.map, mixed))


@register(
    ParallelPartitionAttention,
    taps=lambda block: _watch(block.attn_block, "block ") | _watch(block.attn_grid, "grid "),
)
def parallel(module: ParallelPartitionAttention, observed: Observed, labels: Labels) -> Labels:
    """Half of the channels come from windows, half from grids."""
    block = _in_windows(module.attn_block, observed, labels.map, module.partition_size, "block ")
    grid = _in_grids(module.attn_grid, observed, labels.map, module.partition_size, "grid ")
    return labels.with_map(observed.residual(labels.map, (block + grid) / 2))


def _parts(block: nn.Module) -> list[nn.Module]:
    if isinstance(block, MaxxVitBlock):
        return present(block.conv, block.attn_block, block.attn_grid)
    if isinstance(block, ParallelMaxxVitBlock):
        return [*(block.conv if isinstance(block.conv, nn.Sequential) else [block.conv]), block.attn]
    return [block]


def _path(model: MaxxVit) -> list[nn.Module]:
    blocks = [block for stage in model.stages for block in stage.blocks]
    return [model.stem.conv1, model.stem.conv2, *(part for block in blocks for part in _parts(block))]


register_average(MaxxVit, path=_path)
