"""ViTs with relative position biases, from a table or a small MLP."""

from timm.models.vision_transformer_relpos import (
    RelPosBlock,
    ResPostRelPosBlock,
    VisionTransformerRelPos,
)

from labelflow import flow
from labelflow.adapters import attention, vit
from labelflow.adapters.registry import Seen, Tap, register, register_model
from labelflow.flow import Labels


def _taps(block: RelPosBlock | ResPostRelPosBlock) -> dict[str, Tap]:
    module = block.attn
    return {
        "query": Tap(module.q_norm),
        "key": Tap(module.k_norm),
        "shared": Tap(module, "shared_rel_pos"),  # (1, A, N, N), if there is one for all blocks
        "weights": Tap(module.attn_drop, "input"),  # only where attention is not fused
        **attention.bias_taps(module.rel_pos),
    }


@register(RelPosBlock, ResPostRelPosBlock, taps=_taps)
def block(module: RelPosBlock | ResPostRelPosBlock, seen: Seen, labels: Labels) -> Labels:
    values = labels.values
    if "weights" in seen:
        mixed = flow.attention(seen["weights"][:, :, seen.rows], values)
    else:
        bias = seen["shared"] if "shared" in seen else attention.bias(module.attn.rel_pos, seen)
        bias = None if bias is None else bias[:, :, seen.rows]
        mixed = flow.attend(seen["query"][:, :, seen.rows], seen["key"], values, bias)
    return Labels(seen.residual(values[:, seen.rows], mixed), labels.grid)


register_model(VisionTransformerRelPos, path=vit.path, heads=vit.heads, head_tokens=vit.head_tokens)
