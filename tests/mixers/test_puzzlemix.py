"""Puzzle-Mix against its definition: every labelling tried, every round of the transport walked, pixel by pixel."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor
from torch.testing import assert_close

import labelflow as lf
from labelflow.mixers.puzzle_cut import cheapest_levels, smallest_cut
from labelflow.mixers.puzzlemix import moved_blocks

seeds = st.integers(0, 2**31)


def seeded(seed: int) -> Generator:
    return Generator().manual_seed(seed)


def energy(levels: Tensor, prices: Tensor, right: Tensor, below: Tensor) -> Tensor:
    """Of labellings (K, h, w) of one image's costs: (K,)"""
    own = torch.stack([(levels == level) * prices[level] for level in range(prices.shape[0])]).sum(0)
    across = right * levels.diff(dim=2).square()
    down = below * levels.diff(dim=1).square()
    return own.sum((1, 2)) + across.sum((1, 2)) + down.sum((1, 2))


def labellings(height: int, width: int, levels: int) -> Tensor:
    every = itertools.product(range(levels), repeat=height * width)
    return torch.tensor(list(every)).view(-1, height, width)


def problem(batch: int, height: int, width: int, seed: int, tie: float) -> tuple[Tensor, Tensor, Tensor]:
    """Convex prices, some linear, some flat, and weights of which some are 0."""
    generator = seeded(seed)

    def rand(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator)

    slope = (rand(batch, height, width) - 0.5) * (rand(batch, height, width) < 0.9)
    bend = rand(batch, height, width) * 0.3 * (rand(batch, 1, 1) < 0.7)
    prices = torch.stack([torch.zeros_like(slope), slope - bend, 2 * slope], 1)
    right, below = (tie * rand(batch, *shape) for shape in ((height, width - 1), (height - 1, width)))
    return prices, right * (right > 0.2 * tie), below


@given(
    seed=seeds, shape=st.sampled_from([(1, 1), (1, 5), (2, 2), (2, 3), (4, 1)]), tie=st.sampled_from([0, 0.1, 1, 99])
)
def test_no_labelling_is_cheaper(seed: int, shape: tuple[int, int], tie: float) -> None:
    costs = problem(6, *shape, seed, tie)
    levels = cheapest_levels(*costs)
    every = labellings(*shape, 3)
    for one, prices, right, below in zip(levels, *costs, strict=True):
        assert_close(energy(one[None], prices, right, below)[0], energy(every, prices, right, below).min())


@pytest.mark.parametrize("seed", range(3))
def test_no_labelling_of_nine_cells_is_cheaper(seed: int) -> None:
    costs = problem(8, 3, 3, seed, 0.3)
    levels = cheapest_levels(*costs)
    assert len(levels.unique()) == 3
    every = labellings(3, 3, 3)
    for one, prices, right, below in zip(levels, *costs, strict=True):
        assert_close(energy(one[None], prices, right, below)[0], energy(every, prices, right, below).min())


@given(seed=seeds)
def test_a_cut_is_the_cheapest_and_the_smallest(seed: int) -> None:
    generator = seeded(seed)
    costs, right, below = (  # small integers: many sets cost the same
        torch.randint(low, 4, shape, generator=generator).int()
        for low, shape in ((-3, (5, 3, 3)), (0, (5, 3, 2)), (0, (5, 2, 3)))
    )
    inside = smallest_cut(costs, right, below)
    every = labellings(3, 3, 2)
    for one, cost, beside, under in zip(inside, costs, right, below, strict=True):
        prices = torch.stack([torch.zeros_like(cost), cost])
        all_costs = energy(every, prices, beside, under)
        best = every[all_costs == all_costs.min()]
        assert torch.equal(one, (best == 1).all(0))


def test_a_large_grid_solves_a_batch_as_each_image_alone() -> None:
    """And one move of any one cell makes nothing cheaper."""
    costs = problem(4, 16, 16, 0, 0.2)
    levels = cheapest_levels(*costs)
    assert len(levels.unique()) == 3
    for index, (one, prices, right, below) in enumerate(zip(levels, *costs, strict=True)):
        assert torch.equal(cheapest_levels(prices[None], right[None], below[None])[0], one)
        cells = torch.eye(256, dtype=torch.long).view(-1, 16, 16)
        moves = torch.cat([one + cells, one - cells])
        moves = moves[((moves >= 0) & (moves <= 2)).all((1, 2))]
        double = [costs[0][index].double(), right.double(), below.double()]
        assert energy(moves, *double).min() >= energy(one[None], *double)[0] - 1e-6


def costs_by_hand(
    mixer: lf.PuzzleMix, images: Tensor, partner: Tensor, own: Tensor, lam: float, z: Tensor
) -> list[float]:
    """Step 3's energy of the own shares z (B, n, n), with D itself where all z are 0 or 1."""
    n = own.shape[1]
    pixels = images * torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    rows, columns = (side // n for side in images.shape[2:])
    k = mixer.neigh
    assert rows % k == columns % k == 0
    pooled = torch.nn.functional.avg_pool2d(pixels, (rows // k, columns // k))
    price = mixer.beta / (16 * n)
    odds = {1.0: lam**2, 0.5: 2 * lam * (1 - lam), 0.0: (1 - lam) ** 2}
    energies = []
    for b, other in enumerate(partner.tolist()):
        which = {1: pooled[b], 0: pooled[other]}
        energy = 0.0
        for i, j in itertools.product(range(n), range(n)):
            share = float(z[b, i, j])
            energy += share * float(own[other, i, j]) + (1 - share) * float(own[b, i, j])
            energy -= mixer.eta / n**2 * math.log(odds[share])
            for down, over in ((0, 1), (1, 0)):
                if i + down == n or j + over == n:
                    continue
                after = float(z[b, i + down, j + over])
                apart = 0.0
                for p in range(k):
                    y, x = (i * k + p, j * k + k - 1) if over else (i * k + k - 1, j * k + p)
                    first, second = which[int(share)][:, y, x], which[int(after)][:, y + down, x + over]
                    apart += float((first - second).abs().mean()) / k
                energy += price * (share - after) ** 2 + price * mixer.gamma * apart
        energies.append(energy)
    return energies


@pytest.mark.parametrize("lam", [0.5, 0.2])
def test_costs_are_those_of_the_definition(lam: float) -> None:
    """Energies of binary shares differ as the definition's do: what is folded away is a constant."""
    torch.manual_seed(0)
    images, partner, own = torch.rand(3, 3, 16, 24) * 4, torch.tensor([1, 2, 0]), torch.rand(3, 2, 2)
    own /= own.sum((1, 2), keepdim=True)
    mixer = lf.PuzzleMix(neigh=2, std=(0.229, 0.224, 0.225))
    costs = mixer._costs(images, partner, own, own[partner], lam)
    shares = torch.tensor(list(itertools.product((0.0, 1.0), repeat=4))).view(-1, 2, 2)
    naive = torch.tensor([costs_by_hand(mixer, images, partner, own, lam, z.expand(3, 2, 2)) for z in shares])
    ours = torch.stack([energy((2 * shares).long(), *one) for one in zip(*costs, strict=True)], 1)
    assert_close(ours - ours[0], naive - naive[0], atol=1e-5, rtol=0)
    # And ½ lies in the middle, but for the prior and what neighbours pay.
    half = energy(torch.ones(1, 2, 2).long(), *[cost[0] for cost in costs])
    ends = energy(torch.tensor([0, 2])[:, None, None].expand(2, 2, 2), *[cost[0] for cost in costs])
    assert_close(half[0], ends.mean() - mixer.eta * math.log(2))


def walked(importance: Tensor, shown: Tensor, price: float) -> list[int]:
    """The same rounds, one block after another, for one image."""
    n = len(importance)
    places = list(itertools.product(range(n), range(n)))
    far = max(n - 1, 1) ** 2
    cost = [
        [
            torch.tensor(price) * ((torch.tensor((a - c) ** 2.0) / far) + torch.tensor((b - d) ** 2.0) / far)
            - importance[a, b] * shown[c, d]
            for c, d in places
        ]
        for a, b in places
    ]
    for _ in range(n):
        wishes = [min(range(n * n), key=lambda j, row=row: row[j]) for row in cost]
        kept = {}
        for place in set(wishes):
            suitors = [block for block, wish in enumerate(wishes) if wish == place]
            kept[place] = min(suitors, key=lambda block, place=place: cost[block][place])
        for block, wish in enumerate(wishes):
            if kept[wish] != block:
                cost[block][wish] = cost[block][wish] + 1
    return [kept.get(place, place) for place in range(n * n)]


@given(seed=seeds, side=st.integers(1, 4), price=st.sampled_from([0.8, 0.05]))
def test_transport_walks_the_rounds(seed: int, side: int, price: float) -> None:
    importance = torch.rand(3, side, side, generator=seeded(seed)) ** 4
    importance /= importance.sum((1, 2), keepdim=True)
    shown = torch.rand(3, side, side, generator=seeded(seed + 1)) < 0.4
    sources = moved_blocks(importance, shown, price)
    for one, what, where in zip(sources, importance, shown, strict=True):
        assert one.flatten().tolist() == walked(what, where, price)
        assert len(one[where].unique()) == where.sum()  # no block twice, and each place that shows has one


def test_what_matters_moves_to_where_it_shows() -> None:
    importance = torch.zeros(1, 4, 4)
    importance[0, 1, 1] = 1
    shown = torch.zeros(1, 4, 4, dtype=torch.bool)
    shown[0, :, 2:] = True
    sources = moved_blocks(importance, shown)
    assert sources[0, 1, 2] == 5  # one block to the right, the nearest place
    stay = torch.arange(16).view(1, 4, 4)
    assert torch.equal(moved_blocks(importance, shown, price=1e6), stay)
    assert torch.equal(moved_blocks(importance, ~shown), stay)  # it shows already


def test_puzzlemix_keeps_the_important_parts() -> None:
    """Something left of one image, something right of the other: both are seen, where they were."""
    images = torch.zeros(2, 3, 32, 32)
    importance = torch.zeros(2, 32, 32)
    importance[0, :, :16] = 1
    importance[1, :, 16:] = 1
    mix = lf.PuzzleMix(1e6, blocks=(4,), pairing="flip")(images, seeded(0), importance=importance)
    assert mix.share[0, 0, :, :16].unique().tolist() == [1.0]
    assert mix.share[0, 0, :, 16:].unique().tolist() == [0.0]
    assert torch.equal(mix.share[1], 1 - mix.share[0])
    assert_close(mix.lam, torch.tensor([0.5, 0.5]))


@pytest.mark.parametrize("own", [0.0, 1.0])
@pytest.mark.parametrize("count", [2, 16])
def test_at_its_ends_lambda_decides(own: float, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labelflow.mixers.puzzlemix.draw_beta", lambda *_: torch.tensor([own]))
    importance = torch.zeros(2, 32, 32)
    importance[0, 0, 0] = importance[1, 31, 31] = 1
    images = torch.rand(2, 3, 32, 32)
    mix = lf.PuzzleMix(blocks=(count,), pairing="flip")(images, importance=importance)
    assert (mix.share == own).all()
    assert torch.equal(mix.apply(images), images if own else images.flip(0))


@given(seed=seeds, batch=st.integers(1, 5), height=st.integers(1, 5), width=st.integers(1, 5), kind=st.integers(0, 3))
def test_every_puzzle_is_sound(seed: int, batch: int, height: int, width: int, kind: int) -> None:
    images = torch.randn(batch, 3, 4 * height, 4 * width, generator=seeded(seed))
    importance = [torch.zeros(batch, 3, 5), torch.full((batch, 7, 7), torch.nan), torch.ones(batch, 1, 1)]
    seen = [*importance, torch.rand(batch, 9, 8, generator=seeded(seed)) * torch.inf][kind]
    mix = lf.PuzzleMix()(images, seeded(seed), importance=seen)
    assert set(mix.share.unique().tolist()) <= {0.0, 0.5, 1.0}
    assert mix.sources is not None
    n = mix.sources.shape[2]
    share = torch.nn.functional.adaptive_avg_pool2d(mix.share, n)[:, 0]
    assert_close(share.mean((1, 2)), mix.lam)
    for sources, shown in ((mix.sources[:, 0], share > 0), (mix.sources[:, 1], share < 1)):
        assert 0 <= sources.min() <= sources.max() < n * n
        for one, where in zip(sources, shown, strict=True):
            assert len(one[where].unique()) == where.sum()
    assert mix.apply(images).isfinite().all()


def test_every_number_of_blocks_has_its_turn() -> None:
    images, importance = torch.rand(1, 3, 16, 32), torch.ones(1, 16, 32)
    sources = [lf.PuzzleMix()(images, seeded(seed), importance=importance).sources for seed in range(60)]
    assert {one.shape[2] for one in sources if one is not None} == {2, 4, 8, 16}
    assert lf.PuzzleMix(transport=False)(images, importance=importance).sources is None
    assert lf.mixers.make_mixer("puzzlemix(size=1.0)").mixer.guide == "gradient(size=1.0)"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lf.PuzzleMix(blocks=()), "blocks"),
        (lambda: lf.PuzzleMix(blocks=(0, 2)), "blocks"),
        (lambda: lf.PuzzleMix(beta=-1), "beta and eta"),
        (lambda: lf.PuzzleMix(gamma=2), "gamma"),
        (lambda: lf.PuzzleMix(neigh=0), "neigh"),
        (lambda: lf.PuzzleMix()(torch.rand(2, 3, 25, 35), importance=torch.rand(2, 4, 4)), r"blocks=\(5,\) would do"),
        (
            lambda: lf.PuzzleMix(std=(1, 1, 1))(torch.rand(2, 1, 8, 8), importance=torch.rand(2, 4, 4)),
            "3 values for .* 1 channels",
        ),
        (lambda: lf.PuzzleMix()(torch.rand(2, 3, 8, 8), importance=torch.rand(3, 4, 4)), "importance"),
    ],
)
def test_bad_input(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]
