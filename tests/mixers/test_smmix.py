"""SMMix against its definition, done image by image in loops."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor

import labelflow as lf


def seeded(seed: int) -> Generator:
    return Generator().manual_seed(seed)


def windows(importance: Tensor, side: int) -> list[tuple[float, int, int]]:
    """The sum, top and left of every window, in reading order."""
    height, width = importance.shape
    return [
        (float(importance[top : top + side, left : left + side].sum()), top, left)
        for top in range(height - side + 1)
        for left in range(width - side + 1)
    ]


def naive(images: Tensor, importance: Tensor, side: int, pixels: int) -> Tensor:
    """The mixed images: min and max take the first of equals."""
    mixed = images.clone()
    for i in range(len(images)):
        j = len(images) - 1 - i
        _, top, left = min(windows(importance[i], side), key=lambda one: one[0])
        _, from_top, from_left = max(windows(importance[j], side), key=lambda one: one[0])
        for row in range(side * pixels):
            for column in range(side * pixels):
                mixed[i, :, top * pixels + row, left * pixels + column] = images[
                    j, :, from_top * pixels + row, from_left * pixels + column
                ]
    return mixed


@given(
    batch=st.integers(1, 4),
    height=st.integers(1, 6),
    width=st.integers(1, 6),
    levels=st.sampled_from([1, 2, 100]),
    seed=st.integers(0, 2**31),
)
def test_the_definition(batch: int, height: int, width: int, levels: int, seed: int) -> None:
    """Whole numbers as importance, so that sums are exact, with many ties, or nothing but ties."""
    images = torch.rand(batch, 3, 2 * height, 2 * width, generator=seeded(seed))
    importance = torch.randint(levels, (batch, height, width), generator=seeded(seed)).float()
    mix = lf.SMMix()(images, seeded(seed), importance=importance)
    pasted = int((mix.tokens((height, width))[0] == 0).sum())
    side = next(side for side in range(1, 7) if side * side == pasted)
    shorter = min(height, width)
    assert max(1, shorter // 4) <= side <= max(1, 3 * shorter // 4)
    assert torch.allclose(mix.lam, torch.tensor(1 - side**2 / (height * width)))
    assert torch.equal(mix.apply(images), naive(images, importance, side, 2))
    assert torch.equal(mix.own(images), images)
    outside = mix.share.expand_as(images) == 1
    assert torch.equal(mix.pasted(images)[outside], images[mix.partner][outside])  # at its place


def test_the_side_is_uniform_between_a_quarter_and_three_quarters() -> None:
    images, importance = torch.empty(1, 1, 14, 14), torch.ones(1, 14, 14)
    generator = seeded(0)
    areas = [round(14 * 14 * (1 - float(lf.SMMix()(images, generator, importance=importance).lam))) for _ in range(800)]
    counts = {side: areas.count(side * side) for side in range(15)}
    assert {side for side, count in counts.items() if count} == set(range(3, 11))
    assert all(65 < counts[side] < 140 for side in range(3, 11))


def test_whatever_matters_is_found_and_what_does_not_is_covered() -> None:
    importance = torch.full((2, 8, 8), 0.5)
    importance[1, 5:7, 1:3] = 1.0  # the partner's object
    importance[0, 2:4, 4:6] = 0.0  # a hole in the own image
    mix = lf.SMMix(low=0.25, high=0.25)(torch.empty(2, 3, 32, 32), importance=importance)
    assert (mix.tokens((8, 8))[0] == 0).nonzero().tolist() == [[2, 4], [2, 5], [3, 4], [3, 5]]
    assert mix.sources is not None
    assert mix.sources[0, 1, 2:4, 4:6].tolist() == [[41, 42], [49, 50]]


@pytest.mark.parametrize("fill", [0.0, float("nan"), -1.0])
def test_nothing_known_is_the_first_window(fill: float) -> None:
    images = torch.rand(3, 3, 16, 16)
    mix = lf.SMMix(low=0.5, high=0.5)(images, importance=torch.full((3, 4, 4), fill))
    assert torch.equal(mix.apply(images)[:, :, :8, :8], images.flip(0)[:, :, :8, :8])
    assert torch.equal(mix.apply(images)[:, :, 8:], images[:, :, 8:])


@given(
    size=st.tuples(st.integers(1, 30), st.integers(1, 30)),
    grid=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    seed=st.integers(0, 2**31),
)
def test_any_map_for_any_image(size: tuple[int, int], grid: tuple[int, int], seed: int) -> None:
    """Cells that do not divide the image are made larger."""
    images = torch.rand(3, 2, *size)
    mix = lf.SMMix(pairing="permute")(images, seeded(seed), importance=torch.rand(3, *grid))
    assert mix.sources is not None
    rows, columns = mix.sources.shape[2:]
    assert rows <= grid[0]
    assert columns <= grid[1]
    assert mix.sources.min() >= 0
    assert mix.sources.max() < rows * columns
    mixed = mix.apply(images)
    assert set(mixed.flatten().tolist()) <= set(images.flatten().tolist())


@pytest.mark.parametrize(("low", "high"), [(0.8, 0.2), (-0.1, 0.5), (0.5, 1.1)])
def test_bad_sides(low: float, high: float) -> None:
    with pytest.raises(ValueError, match="low and high must be parts"):
        lf.SMMix(low=low, high=high)
    with pytest.raises(ValueError, match=r"importance must have the shape \(B, h, w\)"):
        lf.SMMix()(torch.empty(2, 3, 8, 8), importance=torch.ones(3, 4, 4))
