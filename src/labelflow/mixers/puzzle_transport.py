"""Puzzle-Mix's transport: parts of an image that matter move, not far, to where the image shows.

Shapes: B batch, n×n blocks, N = n² of them.
"""

import torch
from torch import Tensor


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
        kept = torch.full_like(block, batch * count).scatter_reduce(0, asked, suitor, "amin")
        away = (kept[asked] != block).nonzero().squeeze(1)
        if not len(away):
            break
        costs[away, wish[away]] += 1
        wish[away] = costs[away].argmin(1)
    taken = torch.where(kept < batch * count, kept, block) - image
    return taken.view(batch, side, side)


def _distances(side: int, like: Tensor) -> Tensor:
    """(distance between blocks / (n-1))², (N, N)"""
    place = torch.arange(side, device=like.device, dtype=like.dtype)
    apart = (place[:, None] - place).square() / max(side - 1, 1) ** 2  # along one side
    return (apart[:, None, :, None] + apart[None, :, None, :]).reshape(side * side, side * side)
