"""TokenMix (Liu et al., ECCV 2022): blocks of the partner's tokens, a fixed number of them."""

import torch
from torch import Generator, Tensor

from labelflow.mixers.base import Pairing
from labelflow.mixers.patches import BlockPatches


class TokenMix(BlockPatches):
    """One choice of blocks for the batch, of any size from a single token on: half of the h×w tokens and h more show
    the partner, 112 of 14×14, or fewer where ten blocks in a row did not fit. Its target is `token_mix`.

    patch: side of a token in pixels (16 for DeiT).
    pairing: "flip" pairs the first image with the last, "permute" at random.

    >>> mix = TokenMix()(torch.rand(8, 3, 224, 224), generator=torch.Generator().manual_seed(0))
    >>> int((mix.tokens((14, 14))[0] == 0).sum())
    112
    """

    SMALLEST = 1

    def __init__(self, *, patch: int = 16, pairing: Pairing = "flip") -> None:
        super().__init__(patch=patch, per_sample=False, pairing=pairing)

    def _wanted(self, count: int, grid: tuple[int, int], generator: Generator | None) -> Tensor:
        tokens = grid[0] * grid[1]
        return torch.full((count,), min(tokens, tokens // 2 + grid[0]))
