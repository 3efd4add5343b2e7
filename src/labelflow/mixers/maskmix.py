"""MaskMix (MixPro, Zhao et al., ICLR 2023): coarse cells of both images, scattered."""

import math

import torch
from torch import Generator, Tensor

from labelflow.mix import Mix
from labelflow.mixers.base import (
    Pairing,
    Per,
    check_alpha,
    check_images,
    check_pairing,
    check_per,
    draw_beta,
    draws,
    partners,
    spread,
)
from labelflow.mixers.patches import scattered


class MaskMix:
    """⌈λ·cells⌉ of an image's cells stay, λ ~ Beta(α, α), the others show the partner. Which ones is drawn for each
    image. The mix's λ is always the real area, also where the last cells are cut off by the image's edge. Its target is
    `pal`.

    alpha: of the Beta distribution; 1.0 is uniform.
    cell: a cell's side in pixels, best a multiple of the model's patch, so that no token shows both images. Left out,
    the multiple of `patch` nearest to a quarter of the image's shorter side: 56 of 224 pixels for patches of 14, as the
    paper's DeiT has it, 64 for patches of 16.
    per: one λ for the "batch", for each "pair" of partners, or for each "sample".
    pairing: "flip" pairs the first image with the last, "permute" at random.

    >>> mix = MaskMix(cell=56)(torch.rand(8, 3, 224, 224), generator=torch.Generator().manual_seed(0))
    >>> len(mix.lam.unique()), len(mix.share.unique(dim=0))
    (1, 8)
    """

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        cell: int | None = None,
        patch: int = 16,
        per: Per = "batch",
        pairing: Pairing = "permute",
    ) -> None:
        if patch < 1 or (cell is not None and cell < 1):
            raise ValueError(f"cell and patch, sides in pixels, must be at least 1, not {cell} and {patch}")
        self.alpha = check_alpha(alpha)
        self.cell, self.patch = cell, patch
        self.pairing = check_pairing(pairing)
        self.per = check_per(per, pairing)

    def __call__(self, images: Tensor, generator: Generator | None = None) -> Mix:
        batch, height, width = check_images(images, generator)
        cell = self.cell or self.patch * max(1, math.floor(min(height, width) / 4 / self.patch + 0.5))
        grid = math.ceil(height / cell), math.ceil(width / cell)
        partner = partners(self.pairing, batch, images.device, generator)
        ratio = draw_beta(self.alpha, draws(self.per, batch), generator)
        own = torch.ceil(ratio * grid[0] * grid[1]).clamp(min=1)  # cells that stay
        shown = scattered(spread(own, batch), grid, generator)  # (B, h, w) bool
        share = shown.to(images.device, non_blocking=True).float()
        share = share.repeat_interleave(cell, 1).repeat_interleave(cell, 2)
        return Mix(partner, share[:, None, :height, :width])
