"""MixUp (Zhang et al., ICLR 2018), and no mixing at all."""

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


class MixUp:
    """Every pixel is λ one's own, λ ~ Beta(α, α). A fixed point of TL-Align: a constant share flows unchanged.

    alpha: of the Beta distribution; 1.0 is uniform.
    per: one λ for the "batch", for each "pair" of partners, or for each "sample".
    pairing: "flip" pairs the first image with the last, "permute" at random.

    >>> mix = MixUp(alpha=0.8)(torch.rand(8, 3, 224, 224), generator=torch.Generator().manual_seed(0))
    """

    def __init__(self, alpha: float = 0.8, *, per: Per = "batch", pairing: Pairing = "flip") -> None:
        self.alpha = check_alpha(alpha)
        self.pairing = check_pairing(pairing)
        self.per = check_per(per, pairing)

    def __call__(self, images: Tensor, generator: Generator | None = None) -> Mix:
        batch, height, width = check_images(images, generator)
        partner = partners(self.pairing, batch, images.device, generator)
        lam = draw_beta(self.alpha, draws(self.per, batch), generator).float()
        lam = spread(lam.to(images.device, non_blocking=True), batch)
        return Mix(partner, lam.reshape(-1, 1, 1, 1).expand(-1, 1, height, width))


class NoMix:
    """Every image stays unchanged: its own partner, with a share of 1."""

    def __call__(self, images: Tensor, generator: Generator | None = None) -> Mix:
        batch, height, width = check_images(images, generator)
        partner = torch.arange(batch, device=images.device)
        return Mix(partner, torch.ones(1, 1, 1, 1, device=images.device).expand(batch, 1, height, width))
