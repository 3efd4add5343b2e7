"""Attentive CutMix: the partner's most important cells."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor
from torch.testing import assert_close

import labelflow as lf
from labelflow.mixers.base import draw_beta


def seeded(seed: int) -> Generator:
    return Generator().manual_seed(seed)


def oracle(importance: Tensor, wanted: int, height: int, width: int) -> Tensor:
    """Share of an image whose partner has that importance, (h, w)."""
    rows, columns = importance.shape
    cells = [(-float(importance[i, j]), i, j) for i in range(rows) for j in range(columns)]
    share = torch.ones(height, width)
    for _, i, j in sorted(cells)[:wanted]:
        top, bottom = (math.floor(at * height / rows) for at in (i, i + 1))
        left, right = (math.floor(at * width / columns) for at in (j, j + 1))
        share[top:bottom, left:right] = 0
    return share


@given(
    batch=st.integers(1, 4),
    shape=st.tuples(st.integers(1, 50), st.integers(1, 50)),
    grid=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    cells=st.integers(1, 49),
    alpha=st.sampled_from([None, 0.05, 2.0]),
    levels=st.integers(1, 100),
    seed=st.integers(0, 2**31),
)
def test_attentive_cutmix_is_its_definition(
    batch: int,
    shape: tuple[int, int],
    grid: tuple[int, int],
    cells: int,
    alpha: float | None,
    levels: int,
    seed: int,
) -> None:
    importance = torch.randint(levels, (batch, *grid), generator=seeded(seed)).float()
    mix = lf.AttentiveCutMix(cells, alpha=alpha)(torch.empty(batch, 3, *shape), seeded(seed), importance=importance)
    count = grid[0] * grid[1]
    wanted = [max(1, round(cells * count / 49))] * batch
    if alpha is not None:
        lams = draw_beta(alpha, batch, seeded(seed)).tolist()
        wanted = [min(max(math.floor(count * (1 - lam)), 1), count) for lam in lams]
    for index in range(batch):
        expected = oracle(importance[batch - 1 - index], wanted[index], *shape)
        assert torch.equal(mix.share[index, 0], expected)
        assert_close(mix.lam[index], expected.mean())


def test_planted_cells_are_pasted() -> None:
    """6 of 49 cells of 32 pixels, at the partner's places; the label's part is fixed."""
    planted = torch.zeros(2, 7, 7)
    places = [[(0, 0), (0, 6), (3, 3), (3, 4), (5, 1), (6, 6)], [(1, 1), (1, 2), (2, 1), (2, 2), (4, 4), (6, 0)]]
    for one, chosen in zip(planted, places, strict=True):
        for rank, (row, column) in enumerate(chosen):
            one[row, column] = 1 + rank
    mix = lf.AttentiveCutMix()(torch.empty(2, 3, 224, 224), importance=planted)
    assert_close(mix.lam, torch.full((2,), 43 / 49))
    for tokens, chosen in zip(mix.tokens((7, 7)), reversed(places), strict=True):
        assert [tuple(cell) for cell in (tokens == 0).nonzero().tolist()] == chosen
        assert set(tokens.unique().tolist()) == {0.0, 1.0}


def test_the_plus_variant_varies() -> None:
    mix = lf.AttentiveCutMix(alpha=2.0)(torch.empty(2000, 1, 7, 7), seeded(0), importance=torch.rand(2000, 7, 7))
    assert abs(mix.lam.mean() - 0.5) < 0.03
    assert_close(mix.lam.std(), torch.tensor(math.sqrt(1 / 20)), atol=0.01, rtol=0)  # Beta(2, 2)
    few = lf.AttentiveCutMix(alpha=0.01)(torch.empty(200, 1, 7, 7), seeded(0), importance=torch.rand(200, 7, 7))
    assert_close(few.lam.max(), torch.tensor(48 / 49))  # one cell at least
    assert few.lam.min() < 1 / 49


def test_maps_of_nothing_are_mixed_too() -> None:
    nothing = torch.full((3, 7, 7), float("nan"))
    assert_close(lf.AttentiveCutMix()(torch.empty(3, 3, 56, 56), importance=nothing).lam, torch.full((3,), 43 / 49))


def test_bad_input() -> None:
    images = torch.empty(2, 3, 8, 8)
    for cells in (0, 50):
        with pytest.raises(ValueError, match=f"from 1 to 49, not {cells}"):
            lf.AttentiveCutMix(cells)
    with pytest.raises(ValueError, match="alpha"):
        lf.AttentiveCutMix(alpha=-1.0)
    with pytest.raises(ValueError, match="pairing"):
        lf.AttentiveCutMix(pairing="roll")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"importance must have the shape \(B, h, w\)"):
        lf.AttentiveCutMix()(images, importance=torch.rand(2, 49))
    assert lf.AttentiveCutMix().guide == "cnn(model='resnet50', init='pretrained', size=224)"
