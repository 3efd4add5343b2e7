"""Swin Transformers, V1 and V2.

Swin: labels roll, are padded, windowed, masked and merged as tokens are.

Swin v2, and timm's other version of it: cosine attention and position bias are in the weights that both show.
"""

from timm.models import swin_transformer_v2_cr as cr
from timm.models.swin_transformer import PatchMerging, SwinTransformer, SwinTransformerBlock
from timm.models.swin_transformer_v2 import PatchMerging as V2PatchMerging
from timm.models.swin_transformer_v2 import SwinTransformerV2, SwinTransformerV2Block
from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters import patches, windows
from labelflow.adapters.averages import present, register_average
from labelflow.adapters.registry import Observed, Tap, register
from labelflow.flow import Labels


def _taps(block: SwinTransformerBlock) -> dict[str, Tap]:
    return {"qkv": Tap(block.attn.qkv), "weights": Tap(block.attn.attn_drop, "input")}  # weights: if not fused


def _mix_windows(block: SwinTransformerBlock, observed: Observed, labels: Tensor, padded: tuple[int, int]) -> Tensor:
    """Window attention: (windows, places, K) -> (windows, places, K)"""
    if "weights" in observed:
        return flow.attention(observed["weights"], labels)
    count, places = labels.shape[:2]
    query, key, _ = observed["qkv"].reshape(count, places, 3, block.attn.num_heads, -1).permute(2, 0, 3, 1, 4)
    bias = block.attn._get_rel_pos_bias()  # (1, heads, places, places)
    mask = block.get_attn_mask(labels.new_empty(1, *padded, 1)) if block.dynamic_mask else block.attn_mask
    if mask is not None:  # (windows of an image, places, places)
        bias = bias + mask.unsqueeze(1)
    return flow.attend(query, key, labels, bias)


@register(SwinTransformerBlock, taps=_taps)
def block(module: SwinTransformerBlock, observed: Observed, labels: Labels) -> Labels:
    rows, columns = (-(-side // reach) * reach for side, reach in zip(labels.grid, module.window_size, strict=True))
    mixed = windows.mix(
        labels.map,
        module.window_size,
        module.shift_size,
        lambda parts: _mix_windows(module, observed, parts, (rows, columns)),
    )
    return labels.with_map(observed.residual(labels.map, mixed))


@register(PatchMerging, layer=False)
def merge(module: PatchMerging, observed: Observed, labels: Labels) -> Labels:
    return labels.with_map(flow.aggregate(flow.pad(labels.map, (2, 2)), (2, 2)))


def path(model: SwinTransformer) -> list[nn.Module]:
    stages = [[stage.downsample, *stage.blocks] for stage in model.layers]
    return [model.patch_embed, *(module for stage in stages for module in stage if not isinstance(module, nn.Identity))]


register_average(SwinTransformer, path=path)


@register(
    SwinTransformerV2Block,
    cr.SwinTransformerV2CrBlock,
    taps=lambda block: {"weights": Tap(block.attn.attn_drop, "input")},
)
def v2_block(
    module: SwinTransformerV2Block | cr.SwinTransformerV2CrBlock, observed: Observed, labels: Labels
) -> Labels:
    mixed = windows.mix(
        labels.map, module.window_size, module.shift_size, lambda parts: flow.attention(observed["weights"], parts)
    )
    return labels.with_map(observed.residual(labels.map, mixed))


@register(cr.PatchEmbed, layer=False)
def embed(module: cr.PatchEmbed, observed: Observed, labels: Labels) -> Labels:
    return patches.merge(module.proj, labels)


def _cr_path(model: cr.SwinTransformerV2Cr) -> list[nn.Module]:
    return [
        model.patch_embed,
        *(module for stage in model.stages for module in present(stage.downsample, *stage.blocks)),
    ]


register(V2PatchMerging, cr.PatchMerging, layer=False)(merge)
register_average(SwinTransformerV2, path=path)
register_average(cr.SwinTransformerV2Cr, path=_cr_path)
