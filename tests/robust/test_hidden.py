"""Hidden and shuffled pictures: how many cells, which pixels, and that nothing is lost."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng

from labelflow.robust.hidden import SHUFFLES, Hiding, PatchDrop, Shuffle

PICTURE = default_rng(0).integers(1, 256, (224, 224, 3), np.uint8)  # nowhere black


@pytest.mark.parametrize("level", range(9))
def test_tenths_of_the_cells_are_black(level: int) -> None:
    cells = PatchDrop(14)(PICTURE, level, default_rng(3)).reshape(14, 16, 14, 16, 3).swapaxes(1, 2).reshape(196, -1)
    black = (cells == 0).all(1)
    assert black.sum() == 196 * (level + 1) // 10
    original = PICTURE.reshape(14, 16, 14, 16, 3).swapaxes(1, 2).reshape(196, -1)
    assert (cells[~black] == original[~black]).all()


@given(st.integers(1, 20), st.integers(20, 50), st.integers(0, 30), st.integers(0, 2**32))
def test_what_is_hidden_stays_hidden(grid: int, side: int, shift: int, seed: int) -> None:
    picture, before = PICTURE[:side, :side], np.zeros((side, side), bool)
    for level in range(9):
        seen = PatchDrop(grid, shift)(picture, level, default_rng(seed))
        hidden = (seen == 0).all(2)
        assert (hidden | (seen == picture).all(2)).all()
        assert not (before & ~hidden).any()
        cells = grid**2 * (level + 1) // 10
        assert bool(hidden.any()) == bool(cells)
        before = hidden


def test_a_grid_of_all_pixels_hides_pixels() -> None:
    hidden = (PatchDrop(32)(PICTURE[:32, :32], 4, default_rng(0)) == 0).all(2)
    assert hidden.sum() == 512


def test_a_shift_moves_the_cells() -> None:
    plain, moved = (PatchDrop(14, shift)(PICTURE, 5, default_rng(1)) == 0 for shift in (0, 8))
    assert (np.roll(plain.all(2), 8, (0, 1)) == moved.all(2)).all()


@pytest.mark.parametrize("level", range(len(SHUFFLES)))
def test_shuffling_keeps_cells_whole(level: int) -> None:
    rows, columns = SHUFFLES[level]
    mixed = Shuffle(rows, columns)(PICTURE, 0, default_rng(2))

    def cells(picture: np.ndarray) -> list[bytes]:
        high, wide = 224 // rows, 224 // columns
        return [
            picture[top : top + high, left : left + wide].tobytes()
            for top in range(0, 224, high)
            for left in range(0, 224, wide)
        ]

    assert sorted(cells(mixed)) == sorted(cells(PICTURE))
    assert cells(mixed) != cells(PICTURE)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="occlusion-grid must be at least 1"):
        Hiding(occlusion_grid=0)
