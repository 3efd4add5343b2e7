"""The presence of a token: how much of what a layer puts out comes from it (TL-Align, Eq. 2).

Shapes: B batch, N tokens, K sources, h×w their grid.
"""

from dataclasses import replace
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
    labels: Labels  # (B, N, 1), in the order of the model's tokens

    @property
    def values(self) -> Tensor:
        """(B, N); those without a place in the image come first. They sum to the tokens that leave."""
        return self.labels.values[..., 0]

    @property
    def grid(self) -> tuple[int, int]:
        return self.labels.grid

    @property
    def map(self) -> Tensor:
        """(B, h, w)"""
        return self.labels.map[..., 0]


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
            layer._replace(labels=_beside(layer.labels, part.labels)) for layer, part in zip(layers, more, strict=True)
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
        return replace(labels, values=each.expand(len(images), -1, -1))

    def leave(name: str, labels: Labels) -> None:
        counts = labels.values[..., :-1].sum(1)  # (B, N, K + 1) -> (B, K)
        layers.append(Presence(name, replace(came[-1], values=counts.unsqueeze(-1))))

    aligned.follower.run(aligned.model, images, whole, tokens=True, enter=enter, leave=leave)
    return layers, max(labels.values.shape[1] for labels in came)


def _beside(labels: Labels, more: Labels) -> Labels:
    return replace(labels, values=torch.cat([labels.values, more.values], 1))


def _one_hot(tokens: int, begin: int, sources: int) -> Tensor:
    """Each token as a source of its own, K of them from `begin`; the last column is all others: (1, N, K + 1)"""
    last = min(begin + sources, max(tokens, begin))
    place = torch.arange(tokens)
    inside = (place >= begin) & (place < last)
    return F.one_hot(torch.where(inside, place - begin, last - begin), last - begin + 1).float().unsqueeze(0)
