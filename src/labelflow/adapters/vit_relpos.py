"""ViTs with relative position biases, from a table or a small MLP."""

from timm.models.vision_transformer_relpos import (
    RelPosBlock,
    ResPostRelPosBlock,
    VisionTransformerRelPos,
)

from labelflow import flow
from labelflow.adapters import attention, vit
from labelflow.adapters.registry import Observed, Tap, register, register_model
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
def block(module: RelPosBlock | ResPostRelPosBlock, observed: Observed, labels: Labels) -> Labels:
    values = labels.values
    if "weights" in observed:
        mixed = flow.attention(observed["weights"][:, :, observed.rows], values)
    else:
        bias = observed["shared"] if "shared" in observed else attention.bias(module.attn.rel_pos, observed)
        bias = None if bias is None else bias[:, :, observed.rows]
        mixed = flow.attend(observed["query"][:, :, observed.rows], observed["key"], values, bias)
    return Labels(observed.residual(values[:, observed.rows], mixed), labels.grid)


register_model(VisionTransformerRelPos, path=vit.path, heads=vit.heads, head_tokens=vit.head_tokens)
