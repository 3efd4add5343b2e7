"""Random and block-wise mixing of patches: the further strategies of TL-Align's Table 7, and TokenMix."""

import math
from collections.abc import Iterator

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


class _Patches:
    """Some of the patches, a part 1-λ with λ ~ Beta(α, α), show the partner; the mix's λ is their real part.

    alpha: of the Beta distribution; 1.0 is uniform.
    patch: a patch's side in pixels.
    per: one λ and one choice of patches for the "batch", for each "pair" of partners, or for each "sample".
    pairing: "flip" pairs the first image with the last, "permute" at random.
    """

    def __init__(self, alpha: float = 1.0, *, patch: int = 16, per: Per = "sample", pairing: Pairing = "flip") -> None:
        if patch < 1:
            raise ValueError(f"patch, a patch's side in pixels, must be at least 1, not {patch}")
        self.alpha = check_alpha(alpha)
        self.patch = patch
        self.pairing = check_pairing(pairing)
        self.per = check_per(per, pairing)

    def __call__(self, images: Tensor, generator: Generator | None = None) -> Mix:
        batch, height, width = check_images(images, generator)
        if height % self.patch or width % self.patch:
            raise ValueError(
                f"images of {height}×{width} pixels do not divide into patches of {self.patch}×{self.patch}"
            )
        grid = (height // self.patch, width // self.patch)
        partner = partners(self.pairing, batch, images.device, generator)
        pasted = self._wanted(draws(self.per, batch), grid, generator)
        chosen = self._chosen(pasted, grid, generator).to(images.device, non_blocking=True)  # as bool: few bytes
        share = 1 - chosen.float()  # (count, h, w)
        share = share.repeat_interleave(self.patch, 1).repeat_interleave(self.patch, 2)
        return Mix(partner, spread(share.unsqueeze(1), batch))

    def _wanted(self, count: int, grid: tuple[int, int], generator: Generator | None) -> Tensor:
        """How many patches are to show the partner: (count,)"""
        lam = draw_beta(self.alpha, count, generator)
        return torch.round((1 - lam) * grid[0] * grid[1]).long()

    def _chosen(self, pasted: Tensor, grid: tuple[int, int], generator: Generator | None) -> Tensor:
        """Where the partner shows, for each wanted number of patches: (count,) -> (count, h, w) bool."""
        raise NotImplementedError


class RandomPatches(_Patches):
    """Patches chosen one by one, uniformly, as MAE chooses what it masks.

    >>> mix = RandomPatches(alpha=1.0)(torch.rand(8, 3, 224, 224), generator=torch.Generator().manual_seed(0))
    """

    def _chosen(self, pasted: Tensor, grid: tuple[int, int], generator: Generator | None) -> Tensor:
        return scattered(pasted, grid, generator)


class BlockPatches(_Patches):
    """Patches chosen in rectangles, as BEiT chooses what it masks: blocks of at least 16 patches and of an aspect
    between 0.3 and 1/0.3 are added until the wanted number is reached, or ten blocks in a row did not fit.

    >>> mix = BlockPatches(alpha=1.0)(torch.rand(8, 3, 224, 224), generator=torch.Generator().manual_seed(0))
    """

    SMALLEST, ASPECT, TRIES = 16, 0.3, 10

    def _chosen(self, pasted: Tensor, grid: tuple[int, int], generator: Generator | None) -> Tensor:
        return torch.stack([self._blocks(count, grid, generator) for count in pasted.tolist()]).to(pasted.device)

    def _blocks(self, wanted: int, grid: tuple[int, int], generator: Generator | None) -> Tensor:
        chosen = torch.zeros(grid, dtype=torch.bool)
        if wanted == grid[0] * grid[1]:  # no block may span the whole map
            return ~chosen
        smallest = min(self.SMALLEST, wanted)
        missing = wanted
        while missing:
            for area, aspect, top, left in self._proposals(smallest, missing, generator):
                height, width = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
                if not (0 < height < grid[0] and 0 < width < grid[1]):
                    continue
                row, column = int(top * (grid[0] - height + 1)), int(left * (grid[1] - width + 1))
                block = chosen[row : row + height, column : column + width]
                new = block.numel() - int(block.sum())
                if 0 < new <= missing:
                    block.fill_(True)
                    missing -= new
                    break
            else:
                break  # nothing fits: fewer patches than wanted, and λ says so
        return chosen

    def _proposals(
        self, smallest: int, largest: int, generator: Generator | None
    ) -> Iterator[tuple[float, float, float, float]]:
        """Blocks to try: area and aspect, and top and left as parts of what room there is."""
        reach = math.log(self.ASPECT)
        for area, aspect, top, left in draw_uniform((self.TRIES, 4), generator).tolist():
            yield smallest + area * (largest - smallest), math.exp(reach * (1 - 2 * aspect)), top, left


class TokenMix(BlockPatches):
    """TokenMix (Liu et al., ECCV 2022): one choice of blocks for the batch, of any size from a single token on. Half of
    the h×w tokens and h more show the partner, 112 of 14×14, or fewer where ten blocks in a row did not fit. Its target
    is `token_mix`.

    patch: side of a token in pixels (16 for DeiT).
    pairing: "flip" pairs the first image with the last, "permute" at random.

    >>> mix = TokenMix()(torch.rand(8, 3, 224, 224), generator=torch.Generator().manual_seed(0))
    >>> int((mix.tokens((14, 14))[0] == 0).sum())
    112
    """

    SMALLEST = 1

    def __init__(self, *, patch: int = 16, pairing: Pairing = "flip") -> None:
        super().__init__(patch=patch, per="batch", pairing=pairing)

    def _wanted(self, count: int, grid: tuple[int, int], generator: Generator | None) -> Tensor:
        tokens = grid[0] * grid[1]
        return torch.full((count,), min(tokens, tokens // 2 + grid[0]))


def scattered(wanted: Tensor, grid: tuple[int, int], generator: Generator | None) -> Tensor:
    """So many places of a grid, chosen uniformly: (count,) -> (count, h, w) bool"""
    noise = draw_uniform((len(wanted), grid[0] * grid[1]), generator)
    rank = noise.argsort(1).argsort(1)
    return (rank < wanted.unsqueeze(1)).unflatten(1, grid)
