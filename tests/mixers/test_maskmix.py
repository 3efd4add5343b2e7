"""MaskMix against its definition."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator
from torch.testing import assert_close

import labelflow as lf


def seeded(seed: int) -> Generator:
    return Generator().manual_seed(seed)


@given(
    batch=st.integers(1, 5),
    height=st.integers(1, 30),
    width=st.integers(1, 30),
    cell=st.integers(1, 9),
    seed=st.integers(0, 2**31),
)
def test_the_definition(batch: int, height: int, width: int, cell: int, seed: int) -> None:
    """Cells are whole, as many stay of each image as of the first, at least one; edges are cropped, and λ is area."""
    share = (mix := lf.MaskMix(cell=cell)(torch.empty(batch, 3, height, width), seeded(seed))).share[:, 0]
    rows, columns = math.ceil(height / cell), math.ceil(width / cell)
    counts = set()
    for one in share:
        stays = 0
        for row in range(rows):
            for column in range(columns):
                place = one[row * cell : (row + 1) * cell, column * cell : (column + 1) * cell]
                assert place.min() == place.max()
                assert place[0, 0] in (0, 1)
                stays += int(place[0, 0])
        counts.add(stays)
    assert len(counts) == 1
    assert counts <= set(range(1, rows * columns + 1))
    assert_close(mix.lam, share.mean((1, 2)))
    assert sorted(mix.partner.tolist()) == list(range(batch))


def test_the_number_of_cells_is_rounded_up() -> None:
    """⌈16·λ⌉ with uniform λ: each of 1 to 16 alike; and each cell alike."""
    mix = lf.MaskMix(cell=56, per="sample")(torch.empty(1, 1, 1, 1).expand(4000, 1, 224, 224), seeded(0))
    cells = mix.tokens((4, 4))
    counts = cells.sum((1, 2)).long().bincount(minlength=17)
    assert counts[0] == 0
    assert (counts[1:] > 180).all()
    assert (counts[1:] < 320).all()
    assert_close(cells.mean(0), torch.full((4, 4), 8.5 / 16), atol=0.03, rtol=0)
    half = lf.MaskMix(1e9, cell=1)(torch.empty(3, 1, 3, 3), seeded(0))
    assert (half.share.sum((1, 2, 3)) == 5).all()  # ⌈4.5⌉


@pytest.mark.parametrize(
    ("patch", "size", "cells"), [(14, 224, 4), (16, 224, 3.5), (8, 64, 4), (16, 16, 1), (4, 32, 4)]
)
def test_cells_are_whole_patches_and_about_a_quarter_of_the_image(patch: int, size: int, cells: float) -> None:
    images = torch.empty(1, 1, size, 2 * size)
    cell = round(size / cells)
    for seed in range(3):
        share = lf.MaskMix(patch=patch)(images, seeded(seed)).share
        assert torch.equal(share, lf.MaskMix(cell=cell)(images, seeded(seed)).share)


def test_one_ratio_for_the_batch_or_for_each() -> None:
    images = torch.empty(64, 1, 16, 16)
    assert len(lf.MaskMix(cell=4)(images, seeded(0)).share.unique(dim=0)) > 10
    assert len(lf.MaskMix(cell=4)(images, seeded(0)).lam.unique()) == 1
    assert len(lf.MaskMix(cell=4, per="sample")(images, seeded(0)).lam.unique()) > 10
    pairs = lf.MaskMix(cell=4, per="pair", pairing="flip")(images, seeded(0)).lam
    assert torch.equal(pairs, pairs.flip(0))
    assert len(pairs.unique()) > 10
