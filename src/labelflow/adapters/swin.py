"""Swin: labels roll, are padded, windowed, masked and merged as tokens are."""

from timm.models.swin_transformer import PatchMerging, SwinTransformer, SwinTransformerBlock
from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters import windows
from labelflow.adapters.averages import register_average
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
        bias = (bias + mask.unsqueeze(1)).repeat(count // len(mask), 1, 1, 1)
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
