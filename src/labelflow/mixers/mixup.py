"""MixUp (Zhang et al., ICLR 2018), and no mixing at all."""

import torch
from torch import Generator, Tensor

from labelflow.mix import Mix
from labelflow.mixers.base import Pairing, check_alpha, check_images, check_pairing, draw_beta, partners


class MixUp:
    """Every pixel is λ one's own, λ ~ Beta(α, α). A fixed point of TL-Align: a constant share flows unchanged.

    >>> mix = MixUp(alpha=0.8)(torch.rand(8, 3, 224, 224), generator=torch.Generator().manual_seed(0))
    """

    def __init__(self, alpha: float = 0.8, *, per_sample: bool = False, pairing: Pairing = "flip") -> None:
        self.alpha = check_alpha(alpha)
        self.per_sample = per_sample
        self.pairing = check_pairing(pairing)

    def __call__(self, images: Tensor, generator: Generator | None = None) -> Mix:
        batch, height, width = check_images(images, generator)
        partner = partners(self.pairing, batch, images.device, generator)
        lam = (
            draw_beta(self.alpha, batch if self.per_sample else 1, generator)
            .float()
            .to(images.device, non_blocking=True)
        )
        return Mix(partner, lam.reshape(-1, 1, 1, 1).expand(batch, 1, height, width))


class NoMix:
    """Every image stays unchanged: its own partner, with a share of 1."""

    def __call__(self, images: Tensor, generator: Generator | None = None) -> Mix:
        batch, height, width = check_images(images, generator)
        partner = torch.arange(batch, device=images.device)
        return Mix(partner, torch.ones(1, 1, 1, 1, device=images.device).expand(batch, 1, height, width))
