"""Attentive CutMix (Walawalkar et al., ICASSP 2020): the cells of the partner that a trained CNN attends to most."""

import torch
from torch import Generator, Tensor

from labelflow.mix import Mix
from labelflow.mixers.base import (
    Pairing,
    check_alpha,
    check_images,
    check_importance,
    check_pairing,
    draw_beta,
    partners,
)

GRID = 7 * 7  # of a CNN with stride 32 at 224 pixels: what `cells` counts in


class AttentiveCutMix:
    """Paste the partner's most important cells at the same place. The mix's λ is always the real area.

    cells: how many of 49, the 7×7 cells of a ResNet at 224 pixels; the same part of any other grid, at least one.
    alpha: instead, a part 1-λ of the cells, λ ~ Beta(α, α) for each image ("attentive+"; 2.0 for DeiT).
    model, init: the CNN, by timm's name, and its weights: 'pretrained', 'packaged' or a checkpoint file.
    size: images are stretched to so many pixels for the CNN, so that its map is as fine as the paper's whatever the
    training's resolution; 0: unchanged, a grid of 32 pixels.
    pairing: "flip" pairs the first image with the last, "permute" at random.

    >>> images, importance = torch.rand(8, 3, 224, 224), torch.rand(8, 7, 7)
    >>> mix = AttentiveCutMix()(images, importance=importance)
    >>> [round(49 * lam) for lam in mix.lam.tolist()]
    [43, 43, 43, 43, 43, 43, 43, 43]
    """

    def __init__(
        self,
        cells: int = 6,
        *,
        alpha: float | None = None,
        model: str = "resnet50",
        init: str = "pretrained",
        size: int = 224,
        pairing: Pairing = "flip",
    ) -> None:
        if not 1 <= cells <= GRID:
            raise ValueError(f"cells, of the {GRID} in a map of 7×7, must be from 1 to {GRID}, not {cells}")
        self.cells = cells
        self.alpha = None if alpha is None else check_alpha(alpha)
        self.guide = f"cnn(model={model!r}, init={init!r}, size={size})"
        self.pairing = check_pairing(pairing)

    def __call__(self, images: Tensor, generator: Generator | None = None, *, importance: Tensor) -> Mix:
        batch, height, width = check_images(images, generator)
        importance = check_importance(importance, images)
        partner = partners(self.pairing, batch, images.device, generator)
        wanted = self._wanted(batch, importance[0].numel(), generator).to(images.device, non_blocking=True)
        rows, columns = (
            cell_of_pixel(side, cells, images.device)
            for side, cells in zip((height, width), importance.shape[1:], strict=True)
        )
        pasted = largest(importance[partner], wanted)[:, rows][:, :, columns]  # (B, H, W)
        return Mix(partner, 1 - pasted.float().unsqueeze(1))

    def _wanted(self, batch: int, cells: int, generator: Generator | None) -> Tensor:
        """How many of so many cells are pasted, (B,)"""
        if self.alpha is None:
            return torch.full((batch,), max(1, round(self.cells * cells / GRID)))
        lam = draw_beta(self.alpha, batch, generator)
        return torch.floor(cells * (1 - lam)).long().clamp(1, cells)


def largest(importance: Tensor, wanted: Tensor) -> Tensor:
    """The wanted number (B,) of a map's largest cells, the first of equals: (B, h, w) -> the same, bool"""
    order = importance.flatten(1).argsort(dim=1, descending=True, stable=True)
    chosen = torch.arange(order.shape[1], device=order.device) < wanted.unsqueeze(1)
    return torch.zeros_like(chosen).scatter(1, order, chosen).unflatten(1, importance.shape[1:])


def cell_of_pixel(side: int, cells: int, device: torch.device) -> Tensor:
    """Which of the cells of a line each of its pixels lies in, if cell i starts at ⌊i·side/cells⌋: (side,)"""
    return ((torch.arange(side, device=device) + 1) * cells - 1) // side
