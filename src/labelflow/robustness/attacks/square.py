"""Square Attack (Andriushchenko et al. 2020): random squares, kept if they help. It needs no gradient.

B batch, K channels, H × W pixels, S the side of a square.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from labelflow.robustness.attacks.ball import Ball, wide
from labelflow.robustness.attacks.losses import margin
from labelflow.robustness.attacks.victim import FORWARD, Adversarial, Batch, Draws, Victim, at_least, attempts

HALVED_AFTER = 10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000  # queries
TILES = 5  # along the shorter side, in the first point of l2


@dataclass(frozen=True)
class Square:
    """`part` is the part of the image's area that the first squares take; it is halved on the way."""

    queries: int = 5000
    part: float = 0.8
    restarts: int = 1

    def __post_init__(self) -> None:
        at_least(1, queries=self.queries, restarts=self.restarts)
        if not 0 < self.part <= 1:
            raise ValueError(f"part, a fraction of the image's area, must be above 0 and at most 1, not {self.part}")

    def passes(self, classes: int) -> int:
        return FORWARD + self.restarts * (self.queries + 1) * FORWARD

    def __call__(self, victim: Victim, batch: Batch, ball: Ball) -> Tensor:
        def attempt(batch: Batch, targets: Tensor, rank: int, restart: int) -> Adversarial:
            return self._search(victim, batch, ball, batch.generators(Draws.SQUARE, restart))

        return attempts(victim, batch, attempt, restarts=self.restarts)

    def _search(self, victim: Victim, batch: Batch, ball: Ball, generators: list[torch.Generator]) -> Adversarial:
        """An image stops as soon as it is fooled."""
        start, propose = (stripes, repaint) if ball.norm == "linf" else (tiles, shift)
        channels, height, width = batch.images.shape[1:]
        draws = torch.stack([torch.rand(self.queries, 5 + channels, generator=one) for one in generators])
        draws = draws.to(batch.images)  # (B, queries, 5 + K): all that is drawn after the first point
        clean, labels = batch.images, batch.labels
        point = start(clean, ball, generators)
        value = margin(victim.logits(point), labels)
        moved, rows = point.clone(), torch.arange(len(point), device=point.device)
        for query in range(1, self.queries):
            remain = value <= 0
            if not remain.all():
                rows, point, value = rows[remain], point[remain], value[remain]
                clean, labels, draws = clean[remain], labels[remain], draws[remain]
            if not len(rows):
                break
            size = side(area(self.part, query), height, width, least=1 if ball.norm == "linf" else 3)
            candidate = ball.project(propose(point, clean, ball, size, draws[:, query]), clean)
            new = margin(victim.logits(candidate), labels)
            better = new > value
            value, point = torch.where(better, new, value), torch.where(wide(better), candidate, point)
            moved[rows] = point
        return Adversarial(moved, victim.logits(moved).argmax(1) != batch.labels)


def area(part: float, query: int) -> float:
    """The part of the image that a query's square takes.

    >>> [area(0.8, query) for query in (1, 10, 11, 51, 4999)]
    [0.8, 0.8, 0.4, 0.2, 0.00625]
    """
    return part / 2 ** sum(query > limit for limit in HALVED_AFTER)


def side(part: float, height: int, width: int, least: int) -> int:
    """A square's side in pixels; it fits into the image."""
    return min(max(round((part * height * width) ** 0.5), least), height, width)


def stripes(clean: Tensor, ball: Ball, generators: list[torch.Generator]) -> Tensor:
    """Vertical stripes one pixel wide, each channel of each as bright or dark as the ball allows."""
    shape = clean.shape[1], 1, clean.shape[3]
    signs = torch.stack([torch.rand(shape, generator=one) for one in generators]).to(clean) - 0.5
    return ball.project(clean + ball.radius * plus_or_minus(signs), clean)


def repaint(point: Tensor, clean: Tensor, ball: Ball, size: int, drawn: Tensor) -> Tensor:
    """A square whose channels are as bright or dark as the ball allows; drawn (B, 5 + K)."""
    top, left = corner(drawn[:, :2], size, point)
    inside = spans(top, size, point.shape[2])[:, None, :, None] & spans(left, size, point.shape[3])[:, None, None, :]
    signs = plus_or_minus(drawn[:, 5:, None, None] - 0.5)  # (B, K, 1, 1)
    return torch.where(inside, clean + ball.radius * signs, point)


def tiles(clean: Tensor, ball: Ball, generators: list[torch.Generator]) -> Tensor:
    """A grid of bumps with random signs, together as long as the radius."""
    channels, height, width = clean.shape[1:]
    size = max(min(height, width) // TILES, 1)
    rows, columns = height // size, width // size
    signs = torch.stack([torch.rand(channels, rows, columns, generator=one) for one in generators]) - 0.5
    shape = bumps(size).repeat(rows, columns)
    grid = plus_or_minus(signs).repeat_interleave(size, 2).repeat_interleave(size, 3) * shape
    move = torch.zeros(clean.shape)
    top, left = (height - rows * size) // 2, (width - columns * size) // 2
    move[:, :, top : top + rows * size, left : left + columns * size] = grid
    return ball.project(clean + (move * (ball.radius / wide(ball.length(move)))).to(clean), clean)


def shift(point: Tensor, clean: Tensor, ball: Ball, size: int, drawn: Tensor) -> Tensor:
    """The budget of one square, and what is unused, goes to another one, where it is added as bumps (Algorithm 3)."""
    move = point - clean
    unused = (ball.radius**2 - move.flatten(1).square().sum(1)).clamp(min=0)  # (B,)
    first = window(point, *corner(drawn[:, 0:2], size, point), size)
    second = window(point, *corner(drawn[:, 2:4], size, point), size)
    shape = bumps(size).to(point)
    shape = torch.where(wide(drawn[:, 4] < 0.5), shape, shape.T) / shape.norm()  # (B, 1, S, S)
    shape = shape * plus_or_minus(drawn[:, 5:, None, None] - 0.5)  # (B, K, S, S)
    here = move[first]
    bumped = shape + here / lengths(here).clamp(min=1e-12)
    both = torch.zeros_like(move, dtype=torch.bool)
    both[first], both[second] = True, True
    available = (move.square() * both).sum((2, 3), keepdim=True) + wide(unused) / point.shape[1]  # (B, K, 1, 1)
    shifted = move.clone()
    shifted[second] = 0
    shifted[first] = bumped / lengths(bumped).clamp(min=1e-12) * available.sqrt()
    return clean + shifted


def bumps(size: int) -> Tensor:
    """(S, S): a bump on the upper half and its negative on the lower one, steeper towards their centres (Eq. 2).

    >>> bumps(2)
    tensor([[ 0.2500,  1.2500],
            [-0.2500, -1.2500]])
    """
    if size == 1:
        return torch.ones(1, 1)
    upper = size // 2
    return torch.cat([bump(upper, size), -bump(size - upper, size)])


def bump(height: int, width: int) -> Tensor:
    """Σ_{k=0..M} 1 / (n + 1 - k)² with n = half the longer side, M = n - the larger distance to the centre."""
    half = max(height, width) // 2
    rows = (torch.arange(height) - height // 2).abs()[:, None]
    columns = (torch.arange(width) - width // 2).abs()[None]
    reach = half - torch.maximum(rows, columns)  # (height, width)
    steps = (1 / (half + 1 - torch.arange(half + 1)) ** 2).cumsum(0)
    return steps[reach]


def corner(drawn: Tensor, size: int, point: Tensor) -> tuple[Tensor, Tensor]:
    """Where a square begins, (B,) and (B,), from numbers in [0, 1) (B, 2)."""
    free = drawn.new_tensor([point.shape[2] - size + 1, point.shape[3] - size + 1])
    top, left = (drawn * free).long().minimum(free.long() - 1).unbind(1)
    return top, left


def window(point: Tensor, top: Tensor, left: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Indices of a square in each image: they give (B, K, S, S)."""
    steps = torch.arange(size, device=point.device)
    images = torch.arange(len(point), device=point.device)[:, None, None, None]
    channels = torch.arange(point.shape[1], device=point.device)[None, :, None, None]
    return images, channels, (top[:, None] + steps)[:, None, :, None], (left[:, None] + steps)[:, None, None, :]


def spans(begin: Tensor, size: int, total: int) -> Tensor:
    """(B,) -> (B, total) bool: from begin on, `size` long."""
    place = torch.arange(total, device=begin.device)
    return (place >= begin[:, None]) & (place < begin[:, None] + size)


def lengths(squares: Tensor) -> Tensor:
    return squares.square().sum((2, 3), keepdim=True).sqrt()


def plus_or_minus(values: Tensor) -> Tensor:
    return torch.where(values < 0, -torch.ones_like(values), torch.ones_like(values))
