"""SaliencyMix: a box around the partner's peak."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor
from torch.testing import assert_close

import labelflow as lf
from labelflow.mixers.base import Per, draw_beta


def seeded(seed: int) -> Generator:
    return Generator().manual_seed(seed)


def oracle(importance: Tensor, lam: float, height: int, width: int) -> Tensor:
    """Share of an image whose partner has that importance, (h, w): pixel by pixel."""
    rows, columns = importance.shape
    best = max(float(value) for value in importance.flatten())
    centre = (height // 2, width // 2)
    if best > 0:
        place = [float(value) for value in importance.flatten()].index(best)
        centre = tuple(
            math.floor((at + 0.5) * side / count)
            for at, side, count in zip(divmod(place, columns), (height, width), (rows, columns), strict=True)
        )
    half = [math.floor(math.sqrt(1 - lam) * side) // 2 for side in (height, width)]
    share = torch.ones(height, width)
    for y in range(height):
        for x in range(width):
            if all(c - r <= at < c + r for at, c, r in zip((y, x), centre, half, strict=True)):
                share[y, x] = 0
    return share


@given(
    batch=st.integers(1, 5),
    shape=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    grid=st.tuples(st.integers(1, 24), st.integers(1, 24)),
    levels=st.integers(1, 50),  # few: ties, and nothing at all
    per=st.sampled_from(["batch", "pair", "sample"]),
    seed=st.integers(0, 2**31),
)
def test_saliencymix_is_its_definition(
    batch: int, shape: tuple[int, int], grid: tuple[int, int], levels: int, per: Per, seed: int
) -> None:
    importance = torch.randint(levels, (batch, *grid), generator=seeded(seed)).float()
    mix = lf.SaliencyMix(0.7, per=per)(torch.empty(batch, 3, *shape), seeded(seed), importance=importance)
    count = {"batch": 1, "pair": (batch + 1) // 2, "sample": batch}[per]
    lams = draw_beta(0.7, count, seeded(seed)).tolist()
    for index in range(batch):
        own = {"batch": 0, "pair": min(index, batch - 1 - index), "sample": index}[per]
        expected = oracle(importance[batch - 1 - own], lams[own], *shape)
        assert torch.equal(mix.share[index, 0], expected)
        assert_close(mix.lam[index], expected.mean())
    assert mix.partner.tolist() == list(reversed(range(batch)))


def test_the_partner_s_peak_counts_whoever_it_is() -> None:
    images, importance = torch.empty(6, 3, 40, 60), torch.zeros(6, 40, 60)
    importance[torch.arange(6), torch.arange(6) * 7 + 1, torch.arange(6) * 11 + 2] = 1
    mix = lf.SaliencyMix(1e9, pairing="permute")(images, seeded(1), importance=importance)  # λ = 1/2
    assert mix.partner.tolist() != list(range(6))
    for share, partner in zip(mix.share[:, 0], mix.partner.tolist(), strict=True):
        assert share[partner * 7 + 1, partner * 11 + 2] == 0
    assert len(mix.lam.unique()) > 1  # clipped at the edges
    assert mix.lam.min() >= 0.5


@pytest.mark.parametrize("nothing", [0.0, -1.0, float("nan")])
def test_nothing_salient_is_a_box_around_the_centre(nothing: float) -> None:
    mix = lf.SaliencyMix(1e9)(torch.empty(2, 3, 40, 60), importance=torch.full((2, 5, 5), nothing))
    pasted = (mix.share[0, 0] == 0).nonzero()
    assert pasted.min(0).values.tolist() == [6, 9]  # 20 ± 14 rows, 30 ± 21 columns
    assert pasted.max(0).values.tolist() == [33, 50]


def test_bad_input() -> None:
    images = torch.empty(2, 3, 8, 8)
    with pytest.raises(ValueError, match="alpha"):
        lf.SaliencyMix(0)
    with pytest.raises(ValueError, match="pairing"):
        lf.SaliencyMix(pairing="roll")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"importance must have the shape \(B, h, w\) with B = 2"):
        lf.SaliencyMix()(images, importance=torch.rand(3, 8, 8))
    assert lf.SaliencyMix(kind="spectral").guide == "saliency(kind='spectral')"
