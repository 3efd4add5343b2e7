"""CaiT: talking heads among patches, then class attention, which XCiT has, too."""

import torch
from timm.models.cait import Cait, ClassAttn, LayerScaleBlock, TalkingHeadAttn
from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters.registry import Observed, Tap, register, register_model
from labelflow.flow import Labels


def _taps(block: LayerScaleBlock) -> dict[str, Tap]:
    if type(block.attn) is not TalkingHeadAttn:
        raise ValueError(f"labelflow follows labels through CaiT's talking heads, not {type(block.attn).__name__}")
    return {"weights": Tap(block.attn.attn_drop, "input")}


@register(LayerScaleBlock, taps=_taps)
def block(module: LayerScaleBlock, observed: Observed, labels: Labels) -> Labels:
    """Heads are mixed after the softmax, so that weights are signed: each head's rows are normalised on their own."""
    mixed = flow.spatial(observed["weights"], labels.values.unsqueeze(1)).mean(1)  # (B, A, N, K) -> (B, N, K)
    return Labels(observed.residual(labels.values, mixed), labels.grid)


def with_class(observed: Observed, labels: Labels, mixed: Tensor) -> Labels:
    """A class token that alone has looked at all tokens, and seen (B, 1, K)."""
    token = observed.residual(labels.values[:, :1], mixed)
    return Labels(torch.cat([token, labels.values[:, 1:]], 1), labels.grid)


def _class_taps(module: ClassAttn) -> dict[str, Tap]:
    return {
        "query": Tap(module.q),  # (B, A·D), of the class token
        "key": Tap(module.k),  # (B, N, A·D)
        "weights": Tap(module.attn_drop, "input"),  # only where attention is not fused
    }


@register(ClassAttn, taps=_class_taps)
def class_attention(module: ClassAttn, observed: Observed, labels: Labels) -> Labels:
    """With the residual around it."""
    values = labels.values
    if "weights" in observed:
        mixed = flow.attention(observed["weights"], values)  # (B, 1, K)
    else:
        query = observed["query"].unflatten(-1, (module.num_heads, 1, -1))  # (B, A, 1, D)
        key = observed["key"].unflatten(-1, (module.num_heads, -1)).transpose(1, 2)
        mixed = flow.attend(query, key, values)
    return with_class(observed, labels, mixed)


def _path(model: Cait) -> list[nn.Module]:
    # A class block is given patches and class token apart; its attention sees them together.
    return [model.patch_embed, *model.blocks, *(block.attn for block in model.blocks_token_only)]


def heads(model: nn.Module, labels: Tensor) -> Tensor:
    """Of a model that reads its class token, or the mean of all others."""
    return labels[:, :1] if model.global_pool == "token" else labels[:, 1:].mean(1, keepdim=True)


def head_tokens(model: nn.Module) -> int:
    if model.global_pool not in ("token", "avg"):
        raise ValueError(
            f"labelflow follows labels to a class token or an average, not to global_pool={model.global_pool!r}"
        )
    return 1 if model.global_pool == "token" else 0


register_model(Cait, path=_path, heads=heads, head_tokens=head_tokens)
