"""Twins: attention in windows, or to pooled tokens; positions come from a depth-wise convolution."""

from timm.models.twins import Block, GlobalSubSampleAttn, LocallyGroupedAttn, PatchEmbed, PosConv, Twins
from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters import patches, windows
from labelflow.adapters.averages import register_average
from labelflow.adapters.registry import Observed, Tap, register
from labelflow.flow import Labels


def _taps(block: Block) -> dict[str, Tap]:
    attention = block.attn
    weights = {"weights": Tap(attention.attn_drop, "input")}  # only where attention is not fused
    if isinstance(attention, LocallyGroupedAttn):
        return {"qkv": Tap(attention.qkv), **weights}
    return {"query": Tap(attention.q), "key_value": Tap(attention.kv), **weights}


def _attend_locally(heads: int, observed: Observed, labels: Tensor) -> Tensor:
    """In each window: labels (B·windows, places, K)"""
    if "weights" in observed:
        return flow.attention(observed["weights"].flatten(0, 1), labels)
    qkv = observed["qkv"].reshape(*labels.shape[:2], 3, heads, -1)  # from (B, rows, columns, side, side, 3·A·D)
    query, key, _ = qkv.permute(2, 0, 3, 1, 4)
    return flow.attend(query, key, labels)


def _attend_globally(module: GlobalSubSampleAttn, observed: Observed, labels: Labels) -> Tensor:
    """Keys are pooled tokens, and carry pooled labels."""
    keys = labels.values if module.sr is None else patches.merge(module.sr, labels).values
    if "weights" in observed:
        return flow.attention(observed["weights"], keys)
    query = observed["query"].unflatten(-1, (module.num_heads, -1)).transpose(1, 2)  # (B, A, N, D)
    key, _ = observed["key_value"].unflatten(-1, (2, module.num_heads, -1)).permute(2, 0, 3, 1, 4)
    return flow.attend(query, key, keys)


@register(Block, taps=_taps)
def block(module: Block, observed: Observed, labels: Labels) -> Labels:
    attention = module.attn
    if isinstance(attention, LocallyGroupedAttn):
        window, heads = (attention.ws, attention.ws), attention.num_heads
        mixed = windows.mix(labels.map, window, (0, 0), lambda parts: _attend_locally(heads, observed, parts)).flatten(
            1, 2
        )
    else:
        mixed = _attend_globally(attention, observed, labels)
    return Labels(observed.residual(labels.values, mixed), labels.grid)


@register(PosConv)
def positions(module: PosConv, observed: Observed, labels: Labels) -> Labels:
    return labels.with_map(observed.residual(labels.map, flow.convolve(module.proj[0].weight, labels.map)))


@register(PatchEmbed, layer=False)
def embed(module: PatchEmbed, observed: Observed, labels: Labels) -> Labels:
    return patches.merge(module.proj, labels)


def _path(model: Twins) -> list[nn.Module]:
    stages = zip(model.patch_embeds, model.blocks, model.pos_block, strict=True)
    return [module for embed, blocks, conv in stages for module in (embed, blocks[0], conv, *blocks[1:])]


register_average(Twins, path=_path, pool=lambda model: model.global_pool)
