"""SAM 2's Hiera: attention in windows, with queries that are pooled where the grid gets coarser."""

import torch.nn.functional as F
from timm.models.hieradet_sam2 import HieraDet, HieraPatchEmbed, MultiScaleBlock
from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters import patches, windows
from labelflow.adapters.averages import register_average
from labelflow.adapters.registry import Observed, Tap, register
from labelflow.flow import Labels


@register(HieraPatchEmbed, layer=False)
def embed(module: HieraPatchEmbed, observed: Observed, labels: Labels) -> Labels:
    return patches.merge(module.proj, labels)


def _shortcut(module: MultiScaleBlock, observed: Observed, labels: Labels) -> Labels:
    if module.q_stride is None:
        return labels
    return labels.with_map(flow.aggregate(labels.map, module.q_stride))


def _pooled(query: Tensor, window: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    """The maximum over the places of each part of a window: (B·windows, A, r·s, D) -> (B·windows, A, fewer, D)"""
    maps = query.mT.flatten(1, 2).unflatten(-1, window)  # (B·windows, A·D, r, s)
    return F.max_pool2d(maps, stride, stride).flatten(2).unflatten(1, (query.shape[1], -1)).mT


@register(MultiScaleBlock, taps=lambda block: {"qkv": Tap(block.attn.qkv)}, idle=_shortcut)
def block(module: MultiScaleBlock, observed: Observed, labels: Labels) -> Labels:
    window = module.window_size if module.is_windowed else labels.grid
    padded = flow.pad(labels.map, window)
    qkv = observed["qkv"].flatten(1, 2).unflatten(-1, (3, module.attn.num_heads, -1))  # (B·windows, places, 3, A, D)
    query, key, _ = qkv.permute(2, 0, 3, 1, 4)
    rows, columns = module.q_stride or (1, 1)
    if module.q_stride is not None:
        query = _pooled(query, window, module.q_stride)
    mixed = flow.attend(query, key, windows.split(padded, window))
    coarse = (padded.shape[1] // window[0] * (window[0] // rows), padded.shape[2] // window[1] * (window[1] // columns))
    mixed = windows.join(mixed, (window[0] // rows, window[1] // columns), coarse)
    shortcut = _shortcut(module, observed, labels)
    height, width = shortcut.grid
    return labels.with_map(observed.residual(shortcut.map, mixed[:, :height, :width]))


def _path(model: HieraDet) -> list[nn.Module]:
    return [model.patch_embed, *model.blocks]


register_average(HieraDet, path=_path, pool=lambda model: model.head.pool_type)
