"""The cheapest labelling of a grid, exact and for a whole batch at once: Puzzle-Mix's masks.

Each cell of an h×w grid takes a level 0, 1 or 2 (own shares 0, ½, 1). A level has a price of its own, and neighbours
pay the square of their difference. Such an energy is L♮-convex, so that two cuts are enough: start at level 1
everywhere, raise the cells that are better off at 2, the fewest of them, and then lower those better off one below.
(With p after the first cut and x the smallest optimum, submodularity gives x <= p, and its shifted form p <= x + 1.)

A cut is a maximum flow. Costs become integers, so that it is exact; all images' flows run at once, in tensors.

Shapes: B batch, h×w cells, N = B·h·w of them in one row.
"""

import torch
from torch import Tensor

FAR = 1 << 13  # no way to the sink: more than cells, and twice it fits into int16
LARGEST = 1 << 29  # what all costs of an image may sum to, in int32


def cheapest_levels(prices: Tensor, right: Tensor, below: Tensor) -> Tensor:
    """Levels (B, h, w) that minimise Σ prices + Σ weight·(difference of levels)², of the least levels that do.

    prices (B, 3, h, w): of each level, convex in it; right (B, h, w-1), below (B, h-1, w): weights ≥ 0, between a
    cell and its neighbour. They are rounded to the 2⁻²⁹th part of their sum.

    >>> prices = torch.tensor([[9.0, 1.0], [5.0, 0.0], [0.0, 4.0]]).reshape(1, 3, 1, 2)
    >>> cheapest_levels(prices, right=torch.tensor([[[0.5]]]), below=torch.zeros(1, 0, 2)).tolist()
    [[[2, 1]]]
    """
    raising, lowering, right, below = _as_integers(prices, right, below)
    levels = torch.ones_like(raising)
    levels += smallest_cut(raising, right, below)
    pull = levels[:, :, 1:] - levels[:, :, :-1], levels[:, 1:] - levels[:, :-1]  # from right and below: -1, 0, 1
    costs = torch.where(levels == 2, -raising, lowering)
    costs[:, :, :-1] += 2 * right * pull[0]  # (d-1)² = d² - 2d + 1, of which the 1 is the cut's
    costs[:, :, 1:] -= 2 * right * pull[0]
    costs[:, :-1] += 2 * below * pull[1]
    costs[:, 1:] -= 2 * below * pull[1]
    return (levels - smallest_cut(costs, right, below).int()).long()


def _as_integers(prices: Tensor, right: Tensor, below: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What it costs to leave level 1, up and down, (B, h, w) each, and the weights: int32."""
    raising, lowering = (prices[:, level] - prices[:, 1] for level in (2, 0))
    most = torch.maximum(raising.abs(), lowering.abs()).sum((1, 2), keepdim=True)
    right, below = (weight.minimum(2 * most) for weight in (right, below))  # more would not tie neighbours closer
    total = 2 * most + 2 * right.sum((1, 2), keepdim=True) + 2 * below.sum((1, 2), keepdim=True)
    scale = LARGEST / total.clamp(min=torch.finfo(total.dtype).tiny * LARGEST)
    raising, lowering, right, below = ((scale * cost).round().int() for cost in (raising, lowering, right, below))
    return raising, lowering.maximum(-raising), right, below  # convex in spite of rounding


def smallest_cut(costs: Tensor, right: Tensor, below: Tensor) -> Tensor:
    """The smallest set of cells that minimises Σ costs inside + Σ weights at its border: (B, h, w) bool; all int32.

    Cells that cost are sources, cells that pay are sinks, and flow is pushed along shortest ways until no source that
    has something left reaches a sink that can take it. The set is what still reaches one.
    """
    width = costs.shape[2]
    grid = _Row(width, costs.numel(), costs.device)
    steps = {1: -1, -1: 1, width: -width, -width: width}  # to a neighbour in the row, and back
    room = {step: grid.empty() for step in steps}  # what can still flow in that direction
    for step, back, weight, along in ((1, -1, right, 2), (width, -width, below, 1)):
        ahead, behind = (grid.at(room[one]).view_as(costs) for one in (step, back))
        ahead.narrow(along, 0, weight.shape[along]).copy_(weight)
        behind.narrow(along, 1, weight.shape[along]).copy_(weight)
    left = grid.empty()  # what a source has not got rid of
    here = grid.at(left)
    here.copy_(costs.flatten().clamp(min=0))
    sink = (-costs).flatten().clamp(min=0)
    while True:
        ways = _ways(sink, room, grid)
        way = grid.at(ways)
        longest = int((way * ((here > 0) & (way < FAR))).max())
        if not longest:
            return (way < FAR).view_as(costs)
        nearer = {step: torch.where(way == grid.at(ways, step) + 1, grid.at(room[step]), 0) for step in steps}
        before = {step: some.clone() for step, some in nearer.items()}
        for _ in range(longest):  # then whoever has something left has a longer way: it ends
            _absorb(here, sink)
            for step, some in nearer.items():
                flow = torch.minimum(here, some)
                here -= flow
                some -= flow
                grid.at(left, step).add_(flow)
        _absorb(here, sink)
        for step, back in steps.items():
            flow = before[step] - nearer[step]
            grid.at(room[step]).sub_(flow)
            grid.at(room[back], step).add_(flow)


class _Row:
    """Grids as one row of cells with a margin, in which neighbours are a view. Nothing flows over a grid's edge."""

    def __init__(self, width: int, cells: int, device: torch.device) -> None:
        self.margin, self.cells, self.device = width, cells, device

    def empty(self, value: int = 0, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.full((self.cells + 2 * self.margin,), value, dtype=dtype, device=self.device)

    def at(self, row: Tensor, step: int = 0) -> Tensor:
        """(N,): of each cell's neighbour in that direction."""
        return row.narrow(0, self.margin + step, self.cells)


def _ways(sink: Tensor, room: dict[int, Tensor], grid: _Row) -> Tensor:
    """How far each cell is from a sink that can take something, 1 if it is one: a row, FAR if there is no way."""
    ways = grid.empty(FAR, torch.int16)
    way = grid.at(ways)
    way.masked_fill_(sink > 0, 1)
    length = {step: torch.where(grid.at(some) > 0, 1, FAR).to(torch.int16) for step, some in room.items()}
    while True:
        before = way.clone()
        for _ in range(4):  # to wait for a GPU less often
            for step, added in length.items():
                torch.minimum(way, grid.at(ways, step) + added, out=way)
        if torch.equal(way, before):
            return ways


def _absorb(here: Tensor, sink: Tensor) -> None:
    flow = torch.minimum(here, sink)
    here -= flow
    sink -= flow
