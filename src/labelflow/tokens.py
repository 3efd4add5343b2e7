"""A model's tokens: where images become tokens, and those that it ends with.

Shapes: B batch, N tokens, D width, H×W pixels, h×w a grid of tokens.
"""

from typing import Any

from timm.layers import Format, PatchEmbed
from torch import Tensor, nn

EMBEDDINGS = ("patch_embed", "tokens_to_token", "patch_embed1")


def embedding_of(model: nn.Module) -> nn.Module | None:
    """The module that turns images into tokens, if the model has one."""
    for name, module in model.named_children():
        if name in EMBEDDINGS or isinstance(module, PatchEmbed):
            return module
    return None


def has_token_head(model: nn.Module) -> bool:
    """Whether a model gives its tokens logits of its own accord: `model.dense_logits`, an LV-ViT's."""
    return getattr(model, "aux_head", None) is not None


def token_grid(count: int, height: int, width: int) -> tuple[int, int]:
    """The grid (h, w) of so many tokens of an image of H×W pixels: the one whose cells are closest to squares.

    >>> token_grid(6, height=32, width=48)
    (2, 3)
    """
    rows = [row for row in range(1, count + 1) if count % row == 0]
    h = min(rows, key=lambda row: abs(row / height - count / row / width))
    return h, count // h


def sequence(tokens: Tensor, channels_first: bool) -> Tensor:
    """Tokens as (B, N, D), from that, or from a map (B, D, h, w) or (B, h, w, D)."""
    if tokens.ndim == 3:
        return tokens
    return tokens.flatten(2).transpose(1, 2) if channels_first else tokens.flatten(1, 2)


def embeds_channels_first(embedding: nn.Module) -> bool:
    """timm's PatchEmbed can return maps of both kinds; others return (B, h, w, D)."""
    return getattr(embedding, "output_fmt", Format.NHWC) == Format.NCHW


def final_tokens(model: nn.Module, features: Any, height: int, width: int) -> tuple[Tensor, tuple[int, int]]:
    """The tokens with a place in the image that `model.forward_features` returned, (B, h·w, D), and their grid."""
    if not isinstance(features, Tensor) or features.ndim not in (3, 4):
        raise ValueError(
            f"{type(model).__name__} has no tokens with a place in the image: its forward_features should return "
            "(B, N, D), (B, D, h, w) or (B, h, w, D)"
        )
    if features.ndim == 3:
        places = features[:, getattr(model, "num_prefix_tokens", 0) :]
        return places, token_grid(places.shape[1], height, width)
    channels_first = getattr(model, "output_fmt", "NCHW") == "NCHW"
    grid = features.shape[2:] if channels_first else features.shape[1:3]
    return sequence(features, channels_first), (grid[0], grid[1])
