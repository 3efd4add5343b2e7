"""SAM's ViT: attention in windows, and over all of the map in a few blocks; a convolution at the end."""

from timm.layers import apply_rot_embed_cat
from timm.models.vision_transformer_sam import Attention, Block, VisionTransformerSAM, get_decomposed_rel_pos_bias
from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters import averages, vit, windows
from labelflow.adapters.registry import Observed, Tap, register
from labelflow.flow import Labels


def _taps(block: Block) -> dict[str, Tap]:
    return {
        "query": Tap(block.attn.q_norm),  # (windows·A, places, D)
        "key": Tap(block.attn.k_norm),
        "weights": Tap(block.attn.attn_drop, "input"),  # only where attention is not fused
    }


def _mix(module: Attention, observed: Observed, labels: Tensor, grid: tuple[int, int]) -> Tensor:
    """Attention over the places of each window, or of the map: (windows, places, K) -> (windows, places, K)"""
    heads = (-1, module.num_heads)
    if "weights" in observed:
        return flow.attention(observed["weights"].unflatten(0, heads), labels)
    query, key, bias = observed["query"], observed["key"], None
    if module.use_rel_pos:
        bias = get_decomposed_rel_pos_bias(
            query, module.rel_pos_h.to(query.dtype), module.rel_pos_w.to(query.dtype), grid, grid
        ).unflatten(0, heads)
    elif module.rope is not None:
        query, key = (apply_rot_embed_cat(tokens, module.rope.get_embed()).type_as(tokens) for tokens in (query, key))
    return flow.attend(query.unflatten(0, heads), key.unflatten(0, heads), labels, bias)


@register(Block, taps=_taps)
def block(module: Block, observed: Observed, labels: Labels) -> Labels:
    size = (module.window_size, module.window_size) if module.window_size else labels.grid
    mixed = windows.mix(labels.map, size, (0, 0), lambda parts: _mix(module.attn, observed, parts, size))
    return labels.with_map(observed.residual(labels.map, mixed))


def _path(model: VisionTransformerSAM) -> list[nn.Module]:
    """The neck behind the blocks is convolutions without a shortcut."""
    return [*vit.path(model), *averages.convolutions_in(model.neck)]


averages.register_average(VisionTransformerSAM, path=_path)
