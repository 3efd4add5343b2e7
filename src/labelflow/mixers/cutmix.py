"""A box of the partner, pasted at the same place: CutMix (Yun et al., ICCV 2019), and MixToken (Token Labeling,
Section 3.3), which pastes after the patch embedding."""

from dataclasses import replace

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
    draw_uniform,
    draws,
    partners,
    spread,
)


class CutMix:
    """Paste a box with sides √(1-λ) of the image's, λ ~ Beta(α, α), around a uniform centre, clipped at the edges.

    The mix's λ is the real area after clipping.

    alpha: of the Beta distribution; 1.0 is uniform.
    grid: draw boxes on a grid of that many pixels, so that no patch holds both images (`grid=16` for ViT-S/16).
    per: one box for the "batch", for each "pair" of partners, or for each "sample".
    minmax: draw each side uniformly between these parts of the image's instead, and a place for the box inside it
    (timm's `cutmix_minmax`); alpha then makes no difference.
    correct_lam: False gives the mix the λ that was drawn, as if nothing had been clipped (timm's `correct_lam`). With
    minmax nothing is clipped, and labels that are aligned start from pixels: there it makes no difference.
    pairing: "flip" pairs the first image with the last, "permute" at random.

    >>> mix = CutMix(alpha=1.0)(torch.rand(8, 3, 224, 224), generator=torch.Generator().manual_seed(0))
    """

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        grid: int = 1,
        per: Per = "batch",
        minmax: tuple[float, float] | None = None,
        correct_lam: bool = True,
        pairing: Pairing = "flip",
    ) -> None:
        if grid < 1:
            raise ValueError(f"grid, a patch's side in pixels, must be at least 1, not {grid}")
        if minmax is not None and not (len(minmax) == 2 and 0 <= minmax[0] <= minmax[1] <= 1):
            raise ValueError(f"minmax must be two parts of the image's side, 0 <= min <= max <= 1, not {minmax}")
        self.alpha = check_alpha(alpha)
        self.grid = grid
        self.minmax = minmax
        self.correct_lam = correct_lam
        self.pairing = check_pairing(pairing)
        self.per = check_per(per, pairing)

    def __call__(self, images: Tensor, generator: Generator | None = None) -> Mix:
        batch, height, width = check_images(images, generator)
        if height % self.grid or width % self.grid:
            raise ValueError(f"images of {height}×{width} pixels do not divide into cells of {self.grid}×{self.grid}")
        partner = partners(self.pairing, batch, images.device, generator)
        box, lam = self._boxes((height // self.grid, width // self.grid), draws(self.per, batch), generator)
        share = 1 - inside((box * self.grid).to(images.device, non_blocking=True), height, width)
        if lam is None or self.correct_lam:
            return Mix(partner, spread(share, batch))
        return Mix(partner, spread(share, batch), drawn=spread(lam.float().to(images.device, non_blocking=True), batch))

    def _boxes(self, shape: tuple[int, int], count: int, generator: Generator | None) -> tuple[Tensor, Tensor | None]:
        """Half-open boxes on a map of that shape, over its edges too, (count, 4): top, left, bottom, right; and the λ
        that they were made for, (count,), if there was one."""
        place, size = draw_uniform((2, count, 2), generator)
        cells = place.new_tensor(shape)
        if self.minmax is not None:
            low, high = (torch.floor(cells * part) for part in self.minmax)
            side = torch.floor(low + size * (high - low + 1))
            start = torch.floor(place * (cells - side + 1))
            return torch.cat([start, start + side], 1).long(), None
        lam = draw_beta(self.alpha, count, generator)
        return boxes_around(torch.floor(place * cells).long(), sides(lam, shape)), lam


class MixToken:
    """CutMix on the grid of tokens instead of the image, so that no token has seen both images (Eqs. 5 to 7).

    alpha: of the Beta distribution that boxes are drawn from; 1.0 is uniform.
    patch: side of a token in pixels (16 for LV-ViT, DeiT and T2T-ViT).
    per, pairing: see `CutMix`.

    >>> MixToken(alpha=1.0)(torch.rand(8, 3, 224, 224)).at
    'tokens'
    """

    def __init__(self, alpha: float = 1.0, *, patch: int = 16, per: Per = "batch", pairing: Pairing = "flip") -> None:
        self.alpha = alpha
        self.boxes = CutMix(alpha, grid=patch, per=per, pairing=pairing)

    def __call__(self, images: Tensor, generator: Generator | None = None) -> Mix:
        return replace(self.boxes(images, generator), at="tokens")


def sides(lam: Tensor, shape: tuple[int, int]) -> Tensor:
    """Of boxes that leave λ of a map of that shape and are shaped like it: (count,) -> (count, 2), height and width"""
    return torch.floor(lam.new_tensor(shape) * torch.sqrt(1 - lam).unsqueeze(1)).long()


def boxes_around(centre: Tensor, side: Tensor) -> Tensor:
    """Half-open boxes, over the edges too: twice (count, 2) -> (count, 4), top, left, bottom, right"""
    half = side // 2
    return torch.cat([centre - half, centre + half], 1)


def inside(box: Tensor, height: int, width: int) -> Tensor:
    """1 in each box as far as it lies in the image, 0 around it: (count, 4) -> (count, 1, H, W)"""
    top, left, bottom, right = box.T.unsqueeze(-1)  # (count, 1) each
    row, column = torch.arange(height, device=box.device), torch.arange(width, device=box.device)
    rows = (row >= top) & (row < bottom)  # (count, H)
    columns = (column >= left) & (column < right)
    return (rows.unsqueeze(2) & columns.unsqueeze(1)).unsqueeze(1).float()
