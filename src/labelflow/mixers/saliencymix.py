"""SaliencyMix (Uddin et al., ICLR 2021): a box of the partner around what is most salient in it."""

import torch
from torch import Generator, Tensor

from labelflow.mix import Mix
from labelflow.mixers.base import (
    Pairing,
    Per,
    check_alpha,
    check_images,
    check_importance,
    check_pairing,
    check_per,
    draw_beta,
    draws,
    partners,
    spread,
)
from labelflow.mixers.cutmix import boxes_around, inside, sides


class SaliencyMix:
    """Paste a box with sides √(1-λ) of the image's, λ ~ Beta(α, α), around the peak of the partner's saliency, at the
    same place, clipped at the edges. Where nothing is salient, around the centre.

    The mix's λ is always the real area after clipping.

    alpha: of the Beta distribution; 1.0 is uniform.
    kind: of saliency, "fine" (fine grained, the paper's choice) or "spectral" (spectral residual).
    per: one λ and one box for each "sample", as in the paper. For each "pair" of partners or for the "batch" the box
    is around the peak of the first image's partner; the latter is close to what the authors' code does.
    pairing: "flip" pairs the first image with the last, "permute" at random.

    >>> images, importance = torch.rand(8, 3, 224, 224), torch.rand(8, 224, 224)
    >>> mix = SaliencyMix()(images, torch.Generator().manual_seed(0), importance=importance)
    """

    def __init__(
        self, alpha: float = 1.0, *, kind: str = "fine", per: Per = "sample", pairing: Pairing = "flip"
    ) -> None:
        self.alpha = check_alpha(alpha)
        self.guide = f"saliency(kind={kind!r})"
        self.pairing = check_pairing(pairing)
        self.per = check_per(per, pairing)

    def __call__(self, images: Tensor, generator: Generator | None = None, *, importance: Tensor) -> Mix:
        batch, height, width = check_images(images, generator)
        importance = check_importance(importance, images)
        partner = partners(self.pairing, batch, images.device, generator)
        boxed = partner[: draws(self.per, batch)]
        side = sides(draw_beta(self.alpha, len(boxed), generator), (height, width))
        box = boxes_around(_peaks(importance[boxed], height, width), side.to(images.device, non_blocking=True))
        share = 1 - inside(box, height, width)
        return Mix(partner, spread(share, batch))


def _peaks(importance: Tensor, height: int, width: int) -> Tensor:
    """The pixel in the middle of each map's largest cell, the first of equals; of the image, if there is nothing.

    (count, h, w) -> (count, 2), row and column
    """
    rows, columns = importance.shape[1:]
    value, cell = importance.flatten(1).max(1)
    row, column = cell // columns, cell % columns
    found = value > 0
    y, x = (2 * row + 1) * height // (2 * rows), (2 * column + 1) * width // (2 * columns)
    return torch.stack([y.where(found, height // 2), x.where(found, width // 2)], 1)
