"""Plain ViTs: DeiT, DeiT III, distilled DeiT, ViTs with registers or without a class token."""

from timm.layers import Attention
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import Block, ResPostBlock, VisionTransformer
from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters.registry import Seen, Tap, register, register_model
from labelflow.flow import Labels


def _taps(block: Block) -> dict[str, Tap]:
    attention = block.attn
    if type(attention) is not Attention:
        raise ValueError(f"labelflow follows labels through timm's Attention, not {type(attention).__name__}")
    return {
        "query": Tap(attention.q_norm),
        "key": Tap(attention.k_norm),
        "weights": Tap(attention.attn_drop, "input"),  # only where attention is not fused
    }


@register(Block, ResPostBlock, taps=_taps)
def block(module: Block, seen: Seen, labels: Labels) -> Labels:
    """Eq. 11; the MLP half of a block leaves labels as they are."""
    values = labels.values
    if "weights" in seen:
        mixed = flow.attention(seen["weights"][:, :, seen.rows], values)
    else:
        mixed = flow.attend(seen["query"][:, :, seen.rows], seen["key"], values)
    return Labels(seen.residual(values[:, seen.rows], mixed), labels.grid)


def _path(model: VisionTransformer) -> list[nn.Module]:
    if not isinstance(model.patch_drop, nn.Identity):
        raise ValueError("patch dropout hides which tokens are left: create the model with patch_drop_rate=0")
    pool = [] if model.attn_pool is None else [model.attn_pool]
    return [model.patch_embed, *model.blocks, *pool]


def _heads(model: VisionTransformer, labels: Tensor) -> Tensor:
    if model.attn_pool is not None or model.global_pool == "token":  # a pooled token is in front, too
        return labels[:, :1]
    return labels[:, 0 if model.pool_include_prefix else model.num_prefix_tokens :].mean(1, keepdim=True)


def _head_tokens(model: VisionTransformer) -> int:
    if model.global_pool not in ("token", "avg", "map"):
        raise ValueError(
            f"labelflow follows labels to a class token, an average or attention pooling, not to "
            f"global_pool={model.global_pool!r}"
        )
    return 1 if model.global_pool == "token" else 0


register_model(VisionTransformer, path=_path, heads=_heads, head_tokens=_head_tokens)
register_model(
    VisionTransformerDistilled,  # the class token's head, and the distillation token's
    path=_path,
    heads=lambda model, labels: labels[:, :2],
    head_tokens=lambda model: 2,
)
