"""Mix: what it derives from partner and share, and what it refuses."""

from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
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


@given(mixes(), st.integers(0, 2**10 - 1), st.sampled_from(["area", "aligned"]))
def test_multi_label_targets_blend_as_well(mix: lf.Mix, shown: int, by: str) -> None:
    """A class of both images stays 1, one of neither 0; of the own image alone it is its share."""
    batch, aligned = len(mix.partner), torch.rand(len(mix.partner))
    targets = torch.tensor([[float(shown >> (image + number) & 1) for number in range(3)] for image in range(batch)])
    blended = mix.blend(targets) if by == "area" else mix.blend(targets, aligned)
    for image, share in enumerate(mix.lam if by == "area" else aligned):
        for own, other, found in zip(targets[image], targets[mix.partner[image]], blended[image], strict=True):
            expected = {(1, 1): torch.ones(()), (0, 0): torch.zeros(()), (1, 0): share, (0, 1): 1 - share}
            assert_close(found, expected[int(own), int(other)])


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


@given(cells=st.integers(1, 5), rows=st.integers(1, 12), columns=st.integers(1, 12), seed=st.integers(0, 2**31))
def test_places_follow_the_cells_that_were_moved(cells: int, rows: int, columns: int, seed: int) -> None:
    """The middle of each place lies in a cell, at some point of it; the place shows that point of the source cell."""
    chance = torch.Generator().manual_seed(seed)
    sources = torch.randint(0, cells * cells, (2, 2, cells, cells), generator=chance)
    mix = lf.Mix(torch.tensor([1, 0]), torch.ones(2, 1, 4 * cells, 4 * cells), sources=sources)
    numbers = torch.arange(rows * columns).expand(2, -1).unsqueeze(-1)
    for which, moved in enumerate(mix.move(numbers, (rows, columns))):
        assert moved.shape == (2, rows * columns, 1)
        places = moved.squeeze(-1)
        for image in range(2):
            for row in range(rows):
                for column in range(columns):
                    down, across = (
                        Fraction(2 * row + 1, 2 * rows) * cells,
                        Fraction(2 * column + 1, 2 * columns) * cells,
                    )
                    source = int(sources[image, which, int(down), int(across)])
                    at_row = (source // cells + down % 1) / cells * rows
                    at_column = (source % cells + across % 1) / cells * columns
                    assert places[image, row * columns + column] == int(at_row) * columns + int(at_column)
    if rows % cells == 0 and columns % cells == 0:  # as pixels move
        maps = torch.rand(2, 1, rows, columns, generator=chance)
        own, pasted = mix.move(maps.flatten(2).mT, (rows, columns))
        assert torch.equal(own, mix.own(maps).flatten(2).mT)
        assert torch.equal(pasted, mix.pasted(maps).flatten(2).mT)
    still = lf.Mix(torch.tensor([1, 0]), torch.ones(2, 1, 8, 8)).move(numbers, (rows, columns))[1]
    assert torch.equal(still, numbers)


@st.composite
def resized(draw: st.DrawFn) -> lf.Mix:
    """Three images of 12×8 pixels, each with a box in which its partner is seen."""
    box = torch.zeros(3, 4, dtype=torch.long)
    share = torch.ones(3, 1, 12, 8)
    for image in range(3):
        top, bottom = sorted(draw(st.lists(st.integers(0, 12), min_size=2, max_size=2)))
        left, right = sorted(draw(st.lists(st.integers(0, 8), min_size=2, max_size=2)))
        box[image] = torch.tensor([top, left, bottom, right])
        share[image, :, top:bottom, left:right] = 0
    return lf.Mix(torch.tensor([1, 2, 0]), share, box=box)


@given(resized())
def test_a_partner_is_resized_into_its_box(mix: lf.Mix) -> None:
    assert mix.box is not None
    images = torch.rand(3, 2, 12, 8)
    mixed = mix.apply(images)
    for image, (top, left, bottom, right) in enumerate(mix.box.tolist()):
        expected = images[image].clone()
        if bottom > top and right > left:
            partner = images[int(mix.partner[image])].unsqueeze(0)
            expected[:, top:bottom, left:right] = F.interpolate(partner, (bottom - top, right - left))[0]
        assert torch.equal(mixed[image], expected)


@given(resized(), st.sampled_from([(3, 2), (2, 4), (4, 8), (12, 8), (1, 1)]))
def test_labels_of_tokens_are_resized_exactly(mix: lf.Mix, grid: tuple[int, int]) -> None:
    """As if each pixel had its token's label, and were resized with the image: the mean over a token's pixels."""
    rows, columns = 12 // grid[0], 8 // grid[1]
    labels = torch.rand(3, grid[0] * grid[1], 5)
    pixels = labels.mT.unflatten(2, grid).repeat_interleave(rows, 2).repeat_interleave(columns, 3)
    expected = F.avg_pool2d(mix.apply(pixels), (rows, columns)).flatten(2).mT
    own, pasted = mix.move(labels, grid)
    share = mix.tokens(grid).flatten(1).unsqueeze(-1)
    assert_close(share * own + (1 - share) * pasted, expected)
    every = torch.arange(5).expand(3, 1, 5)
    sparse = lf.Sparse(every, labels, torch.zeros(labels.shape[:2]))
    assert_close(sparse.mixed_tokens(mix, grid).dense(5), expected)
    # Here each token names classes of its own.
    apart = lf.Sparse(
        every.expand_as(labels), labels, torch.zeros(labels.shape[:2])
    )  # each token names its own classes
    assert_close(apart.mixed_tokens(mix, grid).dense(5), expected)


def test_partners_of_a_larger_pool() -> None:
    mix = lf.Mix(torch.tensor([3, 0]), torch.full((2, 1, 4, 4), 0.25), pool=4)
    images, values = torch.rand(4, 3, 4, 4), torch.rand(4, 5)
    assert_close(mix.apply(images), 0.25 * images[:2] + 0.75 * images[[3, 0]])
    assert_close(mix.blend(values), 0.25 * values[:2] + 0.75 * values[[3, 0]])
    assert_close(mix.blend(values, torch.tensor([1.0, 0.0])), values[[0, 0]])
    for wrong in (images[:2], images[:3]):
        with pytest.raises(ValueError, match="4, 4, 4, not"):
            mix.apply(wrong)
    with pytest.raises(ValueError, match="at least the 2 images"):
        lf.Mix(mix.partner, mix.share, pool=1)


def test_what_cannot_be_together() -> None:
    two, share = torch.tensor([1, 0]), torch.ones(2, 1, 4, 4)
    box, sources = torch.zeros(2, 4, dtype=torch.long), torch.zeros(2, 2, 2, 2, dtype=torch.long)
    with pytest.raises(ValueError, match="not both"):
        lf.Mix(two, share, box=box, sources=sources)
    for given_too in ({"box": box}, {"sources": sources}, {"pool": 4}):
        with pytest.raises(ValueError, match="a mix of tokens has none of them"):
            lf.Mix(two, share, at="tokens", **given_too)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"box must have the shape \(B, 4\) = \(2, 4\)"):
        lf.Mix(two, share, box=box[:1])
