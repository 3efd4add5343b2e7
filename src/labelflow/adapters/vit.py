"""Plain ViTs: DeiT, DeiT III, distilled DeiT, ViTs with registers or without a class token."""

from timm.layers import Attention
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters.registry import Seen, Tap, register, register_model
from labelflow.flow import Labels


def _taps(attention: Attention) -> dict[str, Tap]:
    if attention.fused_attn:
        return {"query": Tap(attention.q_norm), "key": Tap(attention.k_norm)}
    return {"weights": Tap(attention.attn_drop, "input")}


@register(Attention, taps=_taps)
def attend(attention: Attention, seen: Seen, labels: Labels) -> Labels:
    """The attention half of a block, Eq. 11; the MLP half leaves labels as they are."""
    values = labels.values
    if "weights" in seen.taps:
        mixed = flow.attention(seen.taps["weights"][:, :, seen.rows], values)
    else:
        mixed = flow.attend(seen.taps["query"][:, :, seen.rows], seen.taps["key"], values)
    return Labels(seen.residual(values[:, seen.rows], mixed), labels.grid)


def _path(model: VisionTransformer) -> list[nn.Module]:
    if not isinstance(model.patch_drop, nn.Identity):
        raise ValueError("patch dropout hides which tokens are left: create the model with patch_drop_rate=0")
    if model.attn_pool is not None or model.global_pool not in ("token", "avg"):
        raise ValueError(
            f"labelflow follows labels to a class token or an average, not to global_pool={model.global_pool!r}"
        )
    strange = {type(block).__name__ for block in model.blocks} - {"Block", "ResPostBlock"}
    if strange:
        raise ValueError(f"labelflow follows labels through Block and ResPostBlock, not {', '.join(sorted(strange))}")
    return [model.patch_embed, *(block.attn for block in model.blocks)]


def _heads(model: VisionTransformer, labels: Tensor) -> Tensor:
    if model.global_pool == "token":
        return labels[:, :1]
    return labels[:, 0 if model.pool_include_prefix else model.num_prefix_tokens :].mean(1, keepdim=True)


register_model(
    VisionTransformer,
    path=_path,
    heads=_heads,
    head_tokens=lambda model: 1 if model.global_pool == "token" else 0,
)
register_model(
    VisionTransformerDistilled,  # the class token's head, and the distillation token's
    path=_path,
    heads=lambda model, labels: labels[:, :2],
    head_tokens=lambda model: 2,
)
