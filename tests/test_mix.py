"""Mix: what it derives from partner and share, and what it refuses."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import labelflow as lf

sizes = st.tuples(st.integers(1, 5), st.integers(1, 12), st.integers(1, 12))  # B, H, W


@st.composite
def mixes(draw: st.DrawFn) -> lf.Mix:
    batch, height, width = draw(sizes)
    seed = draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    share = torch.rand(batch, 1, height, width, generator=generator)
    extreme = torch.randint(0, 3, share.shape, generator=generator)  # zeros and ones as well
    share = torch.where(extreme == 0, 0.0, torch.where(extreme == 1, 1.0, share))
    return lf.Mix(torch.randperm(batch, generator=generator), share)


@given(mixes())
def test_apply_is_equation_1_and_changes_nothing(mix: lf.Mix) -> None:
    images = torch.randn(len(mix.partner), 2, *mix.share.shape[2:])
    before = images.clone()
    expected = torch.empty_like(images)
    for b, partner in enumerate(mix.partner):
        expected[b] = mix.share[b] * images[b] + (1 - mix.share[b]) * images[partner]
    assert_close(mix.apply(images), expected)
    assert torch.equal(images, before)
    whole = (mix.share == 1).expand_as(images)
    assert torch.equal(mix.apply(images)[whole], images[whole])
    pasted = (mix.share == 0).expand_as(images)
    assert torch.equal(mix.apply(images)[pasted], images[mix.partner][pasted])


@given(mixes(), st.sampled_from([(), (3,), (2, 4)]))
def test_blend_keeps_a_share_of_the_own_value(mix: lf.Mix, shape: tuple[int, ...]) -> None:
    values = torch.randn(len(mix.partner), *shape)
    for share in (None, torch.rand(len(mix.partner))):
        own = mix.share.mean((1, 2, 3)) if share is None else share
        expected = torch.stack([w * values[b] + (1 - w) * values[mix.partner[b]] for b, w in enumerate(own)])
        assert_close(mix.blend(values, share), expected)


@given(mixes(), st.floats(0, 0.9), st.integers(2, 7))
def test_smoothing_before_or_after_blending_is_the_same(mix: lf.Mix, smoothing: float, classes: int) -> None:
    y = torch.randint(0, classes, (len(mix.partner),))
    before = mix.blend(lf.soft_labels(y, classes, smoothing))
    after = lf.soft_labels(mix.blend(lf.soft_labels(y, classes)), classes, smoothing)
    assert_close(before, after)


def test_multi_label_targets_blend_as_well() -> None:
    mix = lf.Mix(torch.tensor([1, 0]), torch.full((2, 1, 4, 4), 0.75))
    targets = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    assert_close(mix.blend(targets), torch.tensor([[0.75, 1.0, 0.0], [0.25, 1.0, 0.0]]))


@given(mixes(), st.tuples(st.integers(1, 4), st.integers(1, 4)))
def test_tokens_are_area_fractions(mix: lf.Mix, grid: tuple[int, int]) -> None:
    share = mix.share.repeat_interleave(grid[0], 2).repeat_interleave(grid[1], 3)  # a size that the grid divides
    tokens = lf.Mix(mix.partner, share).tokens(grid)
    height, width = mix.share.shape[2:]
    for i in range(grid[0]):
        for j in range(grid[1]):
            patch = share[:, 0, i * height : (i + 1) * height, j * width : (j + 1) * width]
            assert_close(tokens[:, i, j], patch.mean((1, 2)))


def test_a_share_is_kept_in_float32_for_half_precision_images() -> None:
    mix = lf.Mix(torch.tensor([1, 0]), torch.full((2, 1, 4, 4), 0.3))
    assert mix.apply(torch.ones(2, 3, 4, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert mix.lam.dtype == torch.float32


class TestBadInput:
    mix = lf.Mix(torch.tensor([1, 0]), torch.ones(2, 1, 8, 8))

    def test_shapes(self) -> None:
        with pytest.raises(ValueError, match=r"share must have the shape \(B, 1, H, W\), not \(2, 8, 8\)"):
            lf.Mix(torch.tensor([1, 0]), torch.ones(2, 8, 8))
        with pytest.raises(ValueError, match=r"partner must have the shape \(B,\) = \(2,\)"):
            lf.Mix(torch.tensor([1, 0, 2]), torch.ones(2, 1, 8, 8))
        with pytest.raises(ValueError, match="2, 8, 8, not"):
            self.mix.apply(torch.rand(2, 3, 9, 8))
        with pytest.raises(ValueError, match="one share"):
            self.mix.blend(torch.rand(2, 5), torch.rand(2, 1))

    def test_types(self) -> None:
        with pytest.raises(ValueError, match=r"floating point to be mixed, not torch\.uint8"):
            self.mix.apply(torch.ones(2, 3, 8, 8, dtype=torch.uint8))
        with pytest.raises(ValueError, match=r"torch\.long, not torch\.float32"):
            lf.Mix(torch.tensor([1.0, 0.0]), torch.ones(2, 1, 8, 8))
        with pytest.raises(ValueError, match="soft_labels"):
            self.mix.blend(torch.tensor([3, 4]))
