"""Puzzle-Mix (Kim et al., ICML 2020): blocks of two images are fitted together so that what matters in both is seen.

Shapes: B batch, C channels, H×W pixels, n×n blocks, N = n² of them.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from labelflow.guides.base import per_channel
from labelflow.mix import Mix
from labelflow.mixers.base import (
    Pairing,
    check_alpha,
    check_images,
    check_importance,
    check_pairing,
    draw_beta,
    draw_uniform,
    partners,
)
from labelflow.mixers.puzzle_cut import cheapest_levels

CERTAIN = 10.0  # what a share costs a block that λ = 0 or 1 rules out: more than all importance and all borders


class PuzzleMix:
    """Each block's own share, 0, ½ or 1, is the cheapest for the image as a whole: importance is lost where a block
    does not show, borders between the images cost, and λ ~ Beta(α, α) is followed. Then blocks move to where they are
    seen.

    alpha: of the Beta distribution; 1.0 is uniform. λ and n are drawn for the batch.
    blocks: an image has n×n blocks, n one of these, as far as they divide its sides.
    beta: the price of a difference between neighbours; gamma: how much of it is the visible edge between their pixels,
    of which a block's side has `neigh`. eta: how closely λ is followed.
    transport: False leaves blocks at their places.
    size: of the images that the gradient is taken of, as a part of theirs; 1.0 is the paper's.
    std: with which the images were normalised: it makes differences those of pixels in [0, 1]. Left out, they are such.
    pairing: "flip" pairs the first image with the last, "permute" at random.

    >>> images, importance = torch.rand(8, 3, 224, 224), torch.rand(8, 224, 224)
    >>> mix = PuzzleMix()(images, generator=torch.Generator().manual_seed(0), importance=importance)
    """

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        blocks: Sequence[int] = (2, 4, 8, 16),
        beta: float = 1.2,
        gamma: float = 0.5,
        eta: float = 0.2,
        neigh: int = 4,
        transport: bool = True,
        size: float = 0.5,
        std: Sequence[float] = (1.0,),
        pairing: Pairing = "permute",
    ) -> None:
        if not blocks or min(blocks) < 1:
            raise ValueError(f"blocks must name how many blocks a side has, such as (2, 4, 8, 16), not {blocks}")
        if not (beta >= 0 and eta >= 0 and 0 <= gamma <= 1):
            raise ValueError(f"beta and eta must be 0 or more and gamma in [0, 1], not {beta}, {eta} and {gamma}")
        if neigh < 1:
            raise ValueError(f"neigh, of how many pixels a block's side is made, must be at least 1, not {neigh}")
        self.alpha = check_alpha(alpha)
        self.blocks = tuple(blocks)
        self.beta, self.gamma, self.eta, self.neigh = beta, gamma, eta, neigh
        self.transport = transport
        self.std = tuple(std)
        self.pairing = check_pairing(pairing)
        self.guide = f"gradient(size={size})"

    def __call__(self, images: Tensor, generator: Generator | None = None, *, importance: Tensor) -> Mix:
        batch, height, width = check_images(images, generator)
        importance = check_importance(importance, images)
        fitting = [count for count in self.blocks if height % count == 0 and width % count == 0]
        if not fitting:
            raise ValueError(
                f"images of {height}×{width} pixels do not divide into n×n blocks, n one of {self.blocks}; "
                f"blocks=({_divisor(height, width)},) would do"
            )
        partner = partners(self.pairing, batch, images.device, generator)
        lam = float(draw_beta(self.alpha, 1, generator))
        count = fitting[int(draw_uniform((1,), generator) * len(fitting))]
        own = _parts(importance, count)
        other = own[partner]
        levels = cheapest_levels(*self._costs(images.detach(), partner, own, other, lam))  # (B, n, n): 0, 1, 2
        share = (levels.float() / 2).repeat_interleave(height // count, 1).repeat_interleave(width // count, 2)
        sources = None
        if self.transport:
            sources = torch.stack([moved_blocks(own, levels > 0), moved_blocks(other, levels < 2)], 1)
        return Mix(partner, share.unsqueeze(1), sources=sources)

    def _costs(
        self, images: Tensor, partner: Tensor, own: Tensor, other: Tensor, lam: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of each level (B, 3, n, n), and of (difference of levels)² between neighbours (B, n, n-1), (B, n-1, n)."""
        count = own.shape[1]
        price = self.beta / (16 * count)
        none, whole = own.clone(), other.clone()  # what is lost at share 0, and at share 1
        weights = []
        for along, edges in zip((2, 1), self._edges(images, partner, count), strict=True):
            both, first, second, neither = price * self.gamma * edges
            for start, ones, zeros in ((0, first, second), (1, second, first)):  # the left or upper block, the other
                whole.narrow(along, start, count - 1).add_((ones + both) / 2)
                none.narrow(along, start, count - 1).add_((zeros + neither) / 2)
            weights.append((price + (first + second - both - neither) / 2).clamp(min=0) / 4)  # levels are half shares
        for_own, for_other = (_follow(self.eta / count**2, part) for part in (lam, 1 - lam))
        half = (none + whole) / 2 + for_own + for_other - self.eta / count**2 * math.log(2)
        prices = torch.stack([none + 2 * for_other, half, whole + 2 * for_own], 1)
        return prices, weights[0], weights[1]

    def _edges(self, images: Tensor, partner: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """How much pixels differ across borders: to the right (4, B, n, n-1) and below (4, B, n-1, n). Both blocks from
        the own image, the first one alone, the second one alone, none.
        """
        if len(self.std) not in (1, images.shape[1]):
            raise ValueError(f"std has {len(self.std)} values for images of {images.shape[1]} channels; give one each")
        rows, columns = (min(self.neigh, side // count) for side in images.shape[2:])  # pixels of a block
        pixels = F.adaptive_avg_pool2d(images.float(), (count * rows, count * columns))
        pixels = pixels * per_channel(self.std, pixels)
        return _facing(pixels, partner, columns, rows), _facing(pixels.mT, partner, rows, columns).mT


def _facing(pixels: Tensor, partner: Tensor, across: int, along: int) -> Tensor:
    """Mean difference across the borders between blocks of along×across pixels side by side: (4, B, rows, columns-1)"""
    first, second = pixels[..., across - 1 : -1 : across], pixels[..., across::across]  # (B, C, H, columns-1)
    pairs = ((first, second), (first, second[partner]), (first[partner], second), (first[partner], second[partner]))
    apart = torch.stack([(one - two).abs().mean(1) for one, two in pairs])
    return apart.unflatten(2, (-1, along)).mean(3)


def _parts(importance: Tensor, count: int) -> Tensor:
    """What part of an image's importance each block has, (B, n, n); all the same where nothing is important."""
    parts = F.adaptive_avg_pool2d(importance / importance.amax((1, 2), keepdim=True).clamp(min=1e-30), count)
    total = parts.sum((1, 2), keepdim=True)
    return torch.where(total > 0, parts / total.clamp(min=1e-30), 1 / count**2)


def _follow(weight: float, part: float) -> float:
    """-weight·log(part), as far as it matters"""
    if not weight:
        return 0.0
    return min(-weight * math.log(part), CERTAIN) if part > 0 else CERTAIN


def _divisor(height: int, width: int) -> int:
    """The number of blocks a side that divides both sides and is nearest to 4."""
    common = math.gcd(height, width)
    return min((n for n in range(1, common + 1) if common % n == 0), key=lambda n: abs(n - 4))


def moved_blocks(importance: Tensor, shown: Tensor, price: float = 0.8) -> Tensor:
    """Which block (B, n, n) each place shows, counted row by row. No block is seen at two places that show.

    A block that matters s is worth s at a place that shows, and a move costs price·(distance / (n-1))². In each of n
    rounds a block asks for its best place, a place keeps the best block that asks, and who is turned away finds that
    place dearer by 1. Equals go in order. A place for which none asks shows its own block.

    importance (B, n, n): sums to 1 per image; shown (B, n, n) bool: the places that show something of the image.
    """
    batch, side, _ = importance.shape
    count = side * side
    costs = price * _distances(side, importance) - importance.flatten(1)[:, :, None] * shown.flatten(1)[:, None]
    costs = costs.flatten(0, 1)  # (B·N, N): of each block at each place
    block = torch.arange(batch * count, device=importance.device)
    image = block // count * count  # its first place
    wish = costs.argmin(1)
    for _ in range(side):
        asked = image + wish
        cost = costs[block, wish]
        lowest = cost.new_full((batch * count,), torch.inf).scatter_reduce(0, asked, cost, "amin")
        suitor = torch.where(cost == lowest[asked], block, batch * count)
        winner = torch.full_like(block, batch * count).scatter_reduce(0, asked, suitor, "amin")
        away = (winner[asked] != block).nonzero().squeeze(1)
        if not len(away):
            break
        costs[away, wish[away]] += 1
        wish[away] = costs[away].argmin(1)
    taken = torch.where(winner < batch * count, winner, block) - image
    return taken.view(batch, side, side)


def _distances(side: int, like: Tensor) -> Tensor:
    """(distance between blocks / (n-1))², (N, N)"""
    place = torch.arange(side, device=like.device, dtype=like.dtype)
    apart = (place[:, None] - place).square() / max(side - 1, 1) ** 2  # along one side
    return (apart[:, None, :, None] + apart[None, :, None, :]).reshape(side * side, side * side)
