"""A model's tokens: where images become tokens, and the places that it ends with.

Shapes: B batch, N places, D width, H×W pixels, h×w a grid of tokens, P tokens without a place in the image.
"""

from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from timm.layers import Format, PatchEmbed
from torch import Tensor, nn

EMBEDDINGS = ("patch_embed", "tokens_to_token", "patch_embed1", "conv_proj")  # the last: torchvision's ViT


def embedding_of(model: nn.Module) -> nn.Module | None:
    """The module that turns images into tokens, if the model has one."""
    for name, module in model.named_children():
        if name in EMBEDDINGS or isinstance(module, PatchEmbed):
            return module
    return None


@torch.no_grad()
def check_image_size(model: nn.Module, size: int, name: str = "") -> None:
    """ValueError unless a model, in eval mode, takes images of size×size pixels, and its patches cover them."""
    too_wide: list[int] = []  # patches, in pixels, of which a part would lie outside of the image, and is left out

    def look(patches: nn.Conv2d, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        side, stride = inputs[0].shape[-1], patches.stride[-1]
        if side % stride:
            too_wide.append(stride * round(size / side))

    embedding, name = embedding_of(model), name or type(model).__name__
    with ExitStack() as hooks:
        for module in embedding.modules() if embedding is not None else ():
            if isinstance(module, nn.Conv2d) and module.kernel_size == module.stride and module.padding == (0, 0):
                hooks.enter_context(module.register_forward_hook(look))
        try:
            model(next(model.parameters()).new_zeros(1, 3, size, size))
        except (ValueError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # models have many ways to refuse a size
            told = " ".join(str(error).split())
            raise ValueError(f"{name} does not take images of {size}×{size} pixels: {told}") from error
    if too_wide:
        patch = too_wide[0]
        sizes = [str(near) for near in (size // patch * patch, -(-size // patch) * patch) if near]
        raise ValueError(
            f"{name} has patches of {patch}×{patch} pixels, which do not divide images of {size}×{size}; "
            f"the nearest that they divide: --image-size {' or '.join(sizes)}"
        )


def has_token_head(model: nn.Module) -> bool:
    """Whether a model gives its tokens logits of its own accord: `model.dense_logits`, an LV-ViT's."""
    return hasattr(model, "dense_logits") and getattr(model, "aux_head", None) is not None


def token_grid(count: int, height: int, width: int) -> tuple[int, int]:
    """The grid (h, w) of so many tokens of an image of H×W pixels: the one whose cells are closest to squares.

    >>> token_grid(6, height=32, width=48)
    (2, 3)
    """
    rows = [row for row in range(1, count + 1) if count % row == 0]
    h = min(rows, key=lambda row: abs(row / height - count / row / width), default=0)
    if not h or not 0.6 < (height / h) / (width * h / count) < 1 / 0.6:
        raise ValueError(f"{count} tokens cannot be laid over an image of {height}×{width} pixels in square cells")
    return h, count // h


def is_channels_first(module: nn.Module, tokens: Tensor, height: int, width: int) -> bool:
    """Whether a map is (B, D, h, w) or (B, h, w, D): what its module says, or what fits the image."""
    said = getattr(module, "output_fmt", None)
    if said is not None:
        return Format(said) == Format.NCHW
    first, last = (abs(h * width - w * height) <= max(height, width) for h, w in (tokens.shape[2:], tokens.shape[1:3]))
    if first == last:
        raise ValueError(
            f"{type(module).__name__} returns {tuple(tokens.shape)}: it isn't clear which are the channels"
        )
    return first


def sequence(tokens: Tensor, channels_first: bool) -> Tensor:
    """Tokens as (B, N, D), from that, or from a map (B, D, h, w) or (B, h, w, D)."""
    if tokens.ndim == 3:
        return tokens
    return tokens.flatten(2).transpose(1, 2) if channels_first else tokens.flatten(1, 2)


class Places(NamedTuple):
    """What a model ends with, each place as an image of its own, of one token: what its head can be applied to."""

    features: Tensor  # (B·N, P + 1, D), (B·N, D, 1, 1) or (B·N, 1, 1, D)
    grid: tuple[int, int]  # N = h·w

    def apply(self, head: Any, **options: Any) -> Tensor:
        """A model's `forward_head` at every place: (B, N, …)"""
        return head(self.features, **options).unflatten(0, (-1, self.grid[0] * self.grid[1]))


def final_places(model: nn.Module, features: Any, height: int, width: int) -> Places:
    """Of what `model.forward_features` returned for images of H×W pixels."""
    name = type(model).__name__
    if not isinstance(features, Tensor) or features.ndim not in (3, 4):
        raise ValueError(
            f"{name} has no tokens with a place in the image: its forward_features should return (B, N, D), "
            "(B, D, h, w) or (B, h, w, D)"
        )
    if features.ndim == 4:
        first = getattr(model, "output_fmt", "NCHW") == "NCHW"
        h, w = features.shape[2:] if first else features.shape[1:3]
        single = sequence(features, first).flatten(0, 1)  # (B·N, D)
        return Places(single[:, :, None, None] if first else single[:, None, None, :], (h, w))
    prefix = int(getattr(model, "num_prefix_tokens", getattr(model, "cls_token", None) is not None))
    tokens = features[:, prefix:]
    try:
        grid = token_grid(tokens.shape[1], height, width)
    except ValueError as error:
        raise ValueError(f"{name} does not say where its tokens lie: {error}") from None
    return Places(tokens.flatten(0, 1).unsqueeze(1).expand(-1, prefix + 1, -1), grid)  # its head looks at any of them
