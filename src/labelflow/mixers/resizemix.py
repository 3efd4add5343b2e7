"""ResizeMix (Qin et al., 2020): the whole partner, made smaller, pasted anywhere."""

import torch
from torch import Generator, Tensor

from labelflow.mix import Mix
from labelflow.mixers.base import (
    Pairing,
    Per,
    check_images,
    check_pairing,
    check_per,
    draw_uniform,
    draws,
    partners,
    spread,
)
from labelflow.mixers.cutmix import inside


class ResizeMix:
    """Resize the partner to τ of the image's sides, τ ~ U(low, high), and paste it at a uniform place: λ = 1 - τ², but
    for rounding. All of the partner's objects are seen, so that an empty box cannot have their label.

    low, high: the smallest and the largest part of the sides.
    per: one box for the "batch", for each "pair" of partners, or for each "sample".
    pairing: "flip" pairs the first image with the last, "permute" at random.

    >>> mix = ResizeMix()(torch.rand(8, 3, 224, 224), generator=torch.Generator().manual_seed(0))
    >>> mix.box.shape
    torch.Size([8, 4])
    """

    def __init__(self, low: float = 0.1, high: float = 0.8, *, per: Per = "batch", pairing: Pairing = "flip") -> None:
        if not 0 < low <= high <= 1:
            raise ValueError(
                f"low and high must be parts of the image's sides, 0 < low <= high <= 1, not {low}, {high}"
            )
        self.low, self.high = low, high
        self.pairing = check_pairing(pairing)
        self.per = check_per(per, pairing)

    def __call__(self, images: Tensor, generator: Generator | None = None) -> Mix:
        batch, height, width = check_images(images, generator)
        partner = partners(self.pairing, batch, images.device, generator)
        drawn = draw_uniform((draws(self.per, batch), 3), generator)  # of the size, and of the place
        shape = drawn.new_tensor((height, width))
        side = torch.floor((self.low + (self.high - self.low) * drawn[:, :1]) * shape).clamp(min=1)  # (count, 2)
        start = torch.floor(drawn[:, 1:] * (shape - side + 1))
        box = torch.cat([start, start + side], 1).long().to(images.device, non_blocking=True)
        return Mix(partner, spread(1 - inside(box, height, width), batch), box=spread(box, batch))
