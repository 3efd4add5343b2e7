"""MViTv2: queries, keys and values are pooled by convolutions, and labels alike."""

import torch
import torch.nn.functional as F
from timm.models.mvitv2 import MultiScaleAttention, MultiScaleBlock, MultiScaleVit, PatchEmbed
from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters import convolutions, patches
from labelflow.adapters.registry import Observed, Tap, register, register_model
from labelflow.flow import Labels


@register(PatchEmbed, layer=False)
def embed(module: PatchEmbed, observed: Observed, labels: Labels) -> Labels:
    return patches.merge(module.proj, labels)


def _taps(block: MultiScaleBlock) -> dict[str, Tap]:
    attention = block.attn
    if type(attention) is not MultiScaleAttention or attention.norm_q is None or attention.norm_k is None:
        raise ValueError('labelflow follows labels through MViTv2 with mode="conv" and pool_first=False')
    return {"query": Tap(attention.norm_q), "key": Tap(attention.norm_k)}  # pooled: (B, A, N, D), (B, A, M, D)


def _shortcut(module: MultiScaleBlock, observed: Observed, labels: Labels) -> Labels:
    if module.shortcut_pool_attn is None:
        return labels
    return labels.with_map(convolutions.pool(module.shortcut_pool_attn, labels.map, still=False))


def _distances(table: Tensor, queries: int, keys: int) -> Tensor:
    """The embedding of each distance along one side: (queries, keys, D)"""
    step, reach = max(keys / queries, 1.0), max(queries / keys, 1.0)
    place = torch.arange(queries, device=table.device).unsqueeze(1) * step
    other = torch.arange(keys, device=table.device) * reach
    return table[(place - other + (keys - 1) * reach).long()].float()


def _with_places(
    attention: MultiScaleAttention, query: Tensor, key: Tensor, grid: tuple[int, int], coarse: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Queries and keys whose products hold the relative positions, too: what a query scores for each row and column of
    the keys' grid is appended to it, and to a key which row and column it is in."""
    prefix = query.shape[2] - grid[0] * grid[1]
    placed = query[:, :, prefix:].unflatten(2, grid)
    rows = torch.einsum("bahwd,hkd->bahwk", placed, _distances(attention.rel_pos_h, grid[0], coarse[0]))
    columns = torch.einsum("bahwd,wkd->bahwk", placed, _distances(attention.rel_pos_w, grid[1], coarse[1]))
    scores = F.pad(torch.cat([rows, columns], -1).flatten(2, 3), (0, 0, prefix, 0))
    row, column = (torch.eye(side, device=key.device) for side in coarse)
    where = torch.cat([row.repeat_interleave(coarse[1], 0), column.repeat(coarse[0], 1)], 1)  # (h·w, h + w)
    where = F.pad(where, (0, 0, prefix, 0)).expand(*key.shape[:2], -1, -1)
    return torch.cat([query * attention.scale, scores], -1), torch.cat([key, where], -1)


@register(MultiScaleBlock, taps=_taps, idle=_shortcut)
def block(module: MultiScaleBlock, observed: Observed, labels: Labels) -> Labels:
    attention = module.attn
    query, key = observed["query"].float(), observed["key"].float()
    queries = labels.with_map(convolutions.convolve(attention.pool_q, labels.map, still=False))
    values = labels.with_map(convolutions.convolve(attention.pool_v, labels.map, still=False))
    if attention.rel_pos_type == "spatial":
        query, key = _with_places(attention, query, key, queries.grid, values.grid)
    else:
        query = query * attention.scale
    mixed = flow.attend(query[:, :, observed.rows], key, values.values, scale=1.0)
    if attention.residual_pooling:  # the pooled queries are added to what they attend to
        mixed = observed.residual(queries.values[:, observed.rows], mixed)
    shortcut = _shortcut(module, observed, labels)
    return Labels(observed.residual(shortcut.values[:, observed.rows], mixed), shortcut.grid)


def _path(model: MultiScaleVit) -> list[nn.Module]:
    return [model.patch_embed, *(block for stage in model.stages for block in stage.blocks)]


def _heads(model: MultiScaleVit, labels: Tensor) -> Tensor:
    return labels[:, :1] if model.global_pool == "token" else labels[:, model.num_prefix_tokens :].mean(1, keepdim=True)


def _head_tokens(model: MultiScaleVit) -> int:
    if model.global_pool not in ("token", "avg"):
        raise ValueError(
            f"labelflow follows labels to a class token or an average, not to global_pool={model.global_pool!r}"
        )
    return 1 if model.global_pool == "token" else 0


register_model(MultiScaleVit, path=_path, heads=_heads, head_tokens=_head_tokens)
