"""ResizeMix: its boxes, drawn from their definition."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import labelflow as lf
from labelflow.mixers.choose import make_mixer


@given(height=st.integers(1, 40), width=st.integers(1, 40), seed=st.integers(0, 2**31))
def test_a_box_is_the_image_made_smaller(height: int, width: int, seed: int) -> None:
    """τ of both sides, rounded down, but not to nothing, anywhere inside; λ is the area around it."""
    mix = lf.ResizeMix(low=0.25, high=0.5, per="sample")(
        torch.empty(5, 3, height, width), torch.Generator().manual_seed(seed)
    )
    assert mix.box is not None
    for share, (top, left, bottom, right) in zip(mix.share, mix.box.tolist(), strict=True):
        assert 0 <= top < bottom <= height
        assert 0 <= left < right <= width
        down, across = bottom - top, right - left
        assert max(1, int(0.25 * height)) <= down <= max(1, int(0.5 * height))
        assert down == 1 or across == 1 or abs(down / height - across / width) < 1 / height + 1 / width  # its shape
        inside = torch.zeros(height, width, dtype=torch.bool)
        inside[top:bottom, left:right] = True
        assert torch.equal(share[0] == 0, inside)
        assert torch.equal(share[0] == 1, ~inside)


def test_sizes_and_places_are_uniform() -> None:
    """τ ~ U(0.1, 0.8), the paper's; corners as likely as the middle."""
    mix = lf.ResizeMix(per="sample")(torch.empty(20_000, 1, 100, 100), torch.Generator().manual_seed(0))
    assert mix.box is not None
    top, left, bottom, right = mix.box.float().T
    side = (bottom - top) / 100
    assert 0.1 <= side.min() < 0.11
    assert 0.785 < side.max() <= 0.8
    assert abs(side.mean() - 0.445) < 0.005  # rounded down
    assert abs(side.var() - 0.7**2 / 12) < 0.001
    place = left / (100 - (right - left)).clamp(min=1)
    assert abs(place.mean() - 0.5) < 0.01
    assert abs(place.var() - 1 / 12) < 0.008  # a little more: places are whole numbers


def test_what_it_refuses() -> None:
    for low, high in ((0, 0.5), (0.6, 0.5), (0.1, 1.5)):
        with pytest.raises(ValueError, match="0 < low <= high <= 1"):
            lf.ResizeMix(low, high)
    assert isinstance(make_mixer("resizemix(low=0.2)"), lf.ResizeMix)
