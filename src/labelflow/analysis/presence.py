"""The presence of a token: how much of what a layer puts out comes from it (TL-Align, Eq. 2).

Shapes: B batch, N tokens, K sources, h×w their grid.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelflow.align import Aligned
from labelflow.flow import Labels
from labelflow.models.merging import require_all_tokens

SOURCES = 512  # tokens that are followed at once; more take another pass through the model


class Presence(NamedTuple):
    """Of the tokens that come into a layer."""

    name: str  # of the block in the model, such as "blocks.3"
    values: Tensor  # (B, N); those without a place in the image come first. They sum to the tokens that leave
    grid: tuple[int, int]

    @property
    def map(self) -> Tensor:
        """(B, h, w)"""
        return self.values[:, self.values.shape[1] - self.grid[0] * self.grid[1] :].unflatten(1, self.grid)


@torch.no_grad()
def presence(model: nn.Module, images: Tensor, residual: bool = False, sources: int = SOURCES) -> list[Presence]:
    """p(zᵢ) = Σⱼ Norm(|W|)ⱼᵢ for every layer and token: 1 for a token that counts as much as the average one.

    W is what a layer's spatial mixing does to its own input; residual=True adds the identity. For a depth-wise
    convolution without stride, presence is 1 wherever the border is out of reach (Eq. 3); attention has no such law.

    >>> import timm
    >>> model = timm.create_model("deit_tiny_patch16_224").eval()
    >>> first, *_ = presence(model, torch.rand(1, 3, 224, 224))
    >>> first.name, first.grid, first.values.shape
    ('blocks.0', (14, 14), torch.Size([1, 197]))
    """
    require_all_tokens(model, "presence needs")
    aligned = Aligned(model, residual=residual)
    layers, tokens = _pass(aligned, images, 0, sources)
    for begin in range(sources, tokens, sources):
        more, _ = _pass(aligned, images, begin, sources)
        layers = [
            layer._replace(values=torch.cat([layer.values, part.values], 1))
            for layer, part in zip(layers, more, strict=True)
        ]
    return layers


def _pass(aligned: Aligned, images: Tensor, begin: int, sources: int) -> tuple[list[Presence], int]:
    """The presence of K tokens from `begin` in every layer, and the most tokens that a layer has."""
    whole = torch.ones(len(images), 1, *images.shape[2:], device=images.device)
    came: list[Labels] = []
    layers: list[Presence] = []

    def enter(labels: Labels) -> Labels:
        came.append(labels)
        each = _one_hot(labels.values.shape[1], begin, sources).to(labels.values)
        return Labels(each.expand(len(images), -1, -1), labels.grid)

    def leave(name: str, labels: Labels) -> None:
        layers.append(Presence(name, labels.values[..., :-1].sum(1), came[-1].grid))  # (B, N, K + 1) -> (B, K)

    aligned.follower.run(aligned.model, images, whole, tokens=True, enter=enter, leave=leave)
    return layers, max(labels.values.shape[1] for labels in came)


def _one_hot(tokens: int, begin: int, sources: int) -> Tensor:
    """Each token as a source of its own, K of them from `begin`; the last column is all others: (1, N, K + 1)"""
    last = min(begin + sources, max(tokens, begin))
    place = torch.arange(tokens)
    inside = (place >= begin) & (place < last)
    return F.one_hot(torch.where(inside, place - begin, last - begin), last - begin + 1).float().unsqueeze(0)
