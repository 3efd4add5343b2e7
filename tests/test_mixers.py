"""What every mixer promises, and each one's definition."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor
from torch.testing import assert_close

import labelflow as lf
from labelflow.mixers.base import Per


class Shown:
    """A guided mixer that is shown something random, the same for each batch of a shape."""

    def __init__(self, mixer: lf.mixers.Guided) -> None:
        self.mixer = mixer

    def __call__(self, images: Tensor, generator: Generator | None = None) -> lf.Mix:
        batch, _, height, width = images.shape
        seen = torch.rand(batch, height, width, generator=Generator().manual_seed(batch + height + width))
        return self.mixer(images, generator, importance=seen)


MIXERS = {
    "cutmix": lf.CutMix(),
    "cutmix, one each": lf.CutMix(0.5, per="sample", pairing="permute"),
    "cutmix, on a grid": lf.CutMix(grid=4, per="sample"),
    "mixtoken": lf.MixToken(patch=4, per="sample"),
    "cutmix, minmax": lf.CutMix(minmax=(0.2, 0.8), per="sample"),
    "mixup": lf.MixUp(),
    "mixup, one each": lf.MixUp(0.3, per="sample"),
    "cutmix, one a pair": lf.CutMix(per="pair", correct_lam=False),
    "mixup, one a pair": lf.MixUp(per="pair"),
    "random, one a pair": lf.RandomPatches(patch=4, per="pair"),
    "random": lf.RandomPatches(patch=4),
    "blocks": lf.BlockPatches(patch=4),
    "blocks, one for all": lf.BlockPatches(patch=4, per="batch", pairing="permute"),
    "puzzle": Shown(lf.PuzzleMix()),
    "tokenmix": lf.TokenMix(patch=4),
    "smmix": Shown(lf.SMMix()),
    "saliency": Shown(lf.SaliencyMix()),
    "saliency, one for all": Shown(lf.SaliencyMix(0.5, per="batch", pairing="permute")),
    "saliency, one a pair": Shown(lf.SaliencyMix(per="pair")),
    "attentive": Shown(lf.AttentiveCutMix(alpha=2.0, pairing="permute")),
    "resizemix": lf.ResizeMix(),
    "resizemix, one each": lf.ResizeMix(per="sample", pairing="permute"),
    "resizemix, one a pair": lf.ResizeMix(per="pair"),
    "recursivemix, first batch": lf.RecursiveMix(),
    "none": lf.NoMix(),
    "choose": lf.Choose([lf.MixUp(), lf.CutMix(), lf.NoMix()], [0.3, 0.5, 0.2]),
    "choose, each": lf.Choose([lf.MixUp(), lf.CutMix(per="sample"), lf.NoMix()], [0.3, 0.5, 0.2], per="sample"),
    "choose, resized": lf.Choose([lf.ResizeMix(per="sample"), lf.CutMix()], [0.5, 0.5], per="sample"),
    "choose, one a pair": lf.Choose(
        [lf.MixUp(per="pair"), lf.CutMix(per="pair", correct_lam=False), lf.NoMix()], [0.3, 0.5, 0.2], per="pair"
    ),
}

batches = st.integers(1, 9)
cells = st.integers(1, 10)
seeds = st.integers(0, 2**31)


def seeded(seed: int) -> Generator:
    return Generator().manual_seed(seed)


@pytest.mark.parametrize("name", MIXERS)
@given(batch=batches, height=cells, width=cells, seed=seeds)
def test_every_mix_is_sound(name: str, batch: int, height: int, width: int, seed: int) -> None:
    images = torch.rand(batch, 3, 4 * height, 4 * width)
    before = images.clone()
    mix = MIXERS[name](images, generator=seeded(seed))
    assert mix.share.shape == (batch, 1, 4 * height, 4 * width)
    assert mix.share.dtype == torch.float32
    assert mix.share.min() >= 0
    assert mix.share.max() <= 1
    assert mix.partner.dtype == torch.long
    assert mix.partner.min() >= 0
    assert mix.partner.max() < batch
    mixed = mix.apply(images)
    assert mixed.shape == images.shape
    assert torch.equal(images, before)
    again = MIXERS[name](images, generator=seeded(seed))
    assert torch.equal(again.share, mix.share)
    assert torch.equal(again.partner, mix.partner)


def groups(mix: lf.Mix) -> list[int]:
    """For each image the first that has the same share."""
    return [next(i for i, other in enumerate(mix.share) if torch.equal(one, other)) for one in mix.share]


@pytest.mark.parametrize("batch", [1, 2, 7, 8])
@pytest.mark.parametrize("name", [name for name in MIXERS if "one a pair" in name])
def test_one_draw_a_pair(name: str, batch: int) -> None:
    """Partners share it, and it is none of the others'. An odd batch's middle image is by itself."""
    images = torch.rand(batch, 3, 64, 64)
    mixes = [MIXERS[name](images, seeded(seed)) for seed in range(20)]
    assert all(torch.equal(mix.share, mix.share.flip(0)) for mix in mixes)
    assert any(groups(mix) == [min(i, batch - 1 - i) for i in range(batch)] for mix in mixes)
    for mix in mixes:
        assert torch.equal(mix.lam, mix.lam.flip(0))
        if batch % 2 and mix.box is None:  # its own partner
            assert torch.equal(mix.apply(images)[batch // 2], images[batch // 2])
        if "choose" not in name:
            assert mix.partner.tolist() == list(reversed(range(batch)))


@given(per=st.sampled_from(["batch", "pair", "sample"]), batch=batches, seed=seeds)
def test_lambda_as_it_was_drawn(per: Per, batch: int, seed: int) -> None:
    """It is the λ that the box was made for; labels go by it, pixels do not."""
    images = torch.rand(batch, 1, 40, 60)
    corrected = lf.CutMix(per=per)(images, seeded(seed))
    drawn = lf.CutMix(per=per, correct_lam=False)(images, seeded(seed))
    assert torch.equal(drawn.share, corrected.share)
    assert (drawn.lam <= corrected.lam + 1e-6).all()  # sides are rounded down, boxes are clipped
    inside = (drawn.share[:, :, [0, -1]] == 1).all((1, 2, 3)) & (drawn.share[..., [0, -1]] == 1).all((1, 2, 3))
    assert (corrected.lam - drawn.lam < 2 / 40 + 2 / 60)[inside].all()  # at most two pixels of a side
    y = torch.rand(batch, 5)
    assert_close(drawn.blend(y), drawn.lam[:, None] * y + (1 - drawn.lam[:, None]) * y.flip(0))
    assert torch.equal(drawn.blend(y, corrected.lam), corrected.blend(y))
    beside = lf.CutMix(per=per, minmax=(0.2, 0.8), correct_lam=False)(images, seeded(seed))
    assert torch.equal(beside.lam, beside.share.mean((1, 2, 3)))


def test_lambda_as_it_was_drawn_is_beta() -> None:
    lam = lf.CutMix(0.5, per="sample", correct_lam=False)(torch.empty(20_000, 1, 8, 8), seeded(0)).lam
    assert abs(lam.mean() - 0.5) < 0.01
    assert abs(lam.var() - 0.125) < 0.005
    choose = lf.Choose([lf.MixUp(per="sample"), lf.CutMix(per="sample", correct_lam=False)], [0.5, 0.5], per="sample")
    mix = choose(torch.empty(20, 1, 8, 8), seeded(0))
    plain = mix.share.amin((1, 2, 3)) == mix.share.amax((1, 2, 3))
    assert_close(mix.lam[plain], mix.share[plain, 0, 0, 0])
    assert not torch.allclose(mix.lam[~plain], mix.share[~plain].mean((1, 2, 3)))


def test_every_registered_mixer_is_held_to_it() -> None:
    assert set(lf.mixers.MIXERS.values()) <= {type(getattr(mixer, "mixer", mixer)) for mixer in MIXERS.values()}


@pytest.mark.parametrize("name", MIXERS)
def test_all_randomness_comes_from_the_generator(name: str) -> None:
    images = torch.rand(7, 3, 32, 32)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    MIXERS[name](images, generator=seeded(3))
    assert torch.equal(torch.get_rng_state(), state)
    shares = [MIXERS[name](images, generator=seeded(seed)).share for seed in range(20)]
    unmixed = name in ("none", "recursivemix, first batch")
    assert unmixed == all(torch.equal(share, shares[0]) for share in shares)


def test_without_a_generator_the_global_seed_counts() -> None:
    images = torch.rand(4, 3, 32, 32)
    torch.manual_seed(5)
    first = lf.CutMix(per="sample")(images).share
    torch.manual_seed(5)
    assert torch.equal(lf.CutMix(per="sample")(images).share, first)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_partners(batch: int) -> None:
    images = torch.rand(batch, 3, 8, 8)
    assert lf.CutMix()(images).partner.tolist() == list(reversed(range(batch)))
    assert sorted(lf.CutMix(pairing="permute")(images).partner.tolist()) == list(range(batch))
    assert lf.NoMix()(images).partner.tolist() == list(range(batch))
    if batch == 1:  # an image mixed with itself is itself
        assert torch.equal(lf.CutMix()(images).apply(images), images)


def box(share: Tensor) -> tuple[int, int, int, int] | None:
    """Top, bottom, left, right of what the partner shows; None if nothing."""
    rows, columns = (share == 0).any(1).nonzero(), (share == 0).any(0).nonzero()
    if not len(rows):
        return None
    return int(rows[0]), int(rows[-1]) + 1, int(columns[0]), int(columns[-1]) + 1


@given(height=st.integers(1, 40), width=st.integers(1, 40), seed=seeds)
def test_cutmix_pastes_one_box(height: int, width: int, seed: int) -> None:
    share = lf.CutMix(per="sample")(torch.empty(4, 3, height, width), seeded(seed)).share[:, 0]
    for one in share:
        edges = box(one)
        if edges is not None:
            top, bottom, left, right = edges
            assert (one == 0).sum() == (bottom - top) * (right - left)  # a whole rectangle, rows and columns apart
    assert set(share.unique().tolist()) <= {0.0, 1.0}


def test_cutmix_boxes_follow_the_image_not_its_transpose() -> None:
    """On a wide image boxes are wide: both sides take the same part of the image's."""
    share = lf.CutMix(per="sample")(torch.empty(2000, 1, 20, 200), seeded(0)).share[:, 0]
    edges = [found for one in share if (found := box(one))]
    height = sum(bottom - top for top, bottom, _, _ in edges) / len(edges)
    width = sum(right - left for _, _, left, right in edges) / len(edges)
    assert 8 < width / height < 12
    centre = sum((top + bottom) / 2 for top, bottom, _, _ in edges) / len(edges)
    assert abs(centre - 10) < 0.5


def test_cutmix_keeps_boxes_on_its_grid() -> None:
    share = lf.CutMix(grid=16, per="sample")(torch.empty(64, 3, 64, 96), seeded(0)).share
    tokens = torch.nn.functional.avg_pool2d(share, 16)
    assert set(tokens.unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("per", ["batch", "sample"])
def test_mixtoken_pastes_the_boxes_of_cutmix_on_the_token_grid(per: Per) -> None:
    images = torch.empty(32, 3, 64, 96)
    mix = lf.MixToken(0.7, patch=16, per=per, pairing="permute")(images, seeded(1))
    boxes = lf.CutMix(0.7, grid=16, per=per, pairing="permute")(images, seeded(1))
    assert (mix.at, boxes.at) == ("tokens", "image")
    assert torch.equal(mix.share, boxes.share)
    assert torch.equal(mix.partner, boxes.partner)
    assert set(mix.tokens((4, 6)).unique().tolist()) <= {0.0, 1.0}
    assert all(box(one) is not None for one in mix.share[mix.lam < 1, 0])  # a box shows the partner, not the own image


def test_cutmix_alpha_shapes_the_area() -> None:
    def spread(alpha: float) -> float:
        return float(lf.CutMix(alpha, per="sample")(torch.empty(4000, 1, 64, 64), seeded(0)).lam.std())

    assert spread(0.1) > spread(1.0) > spread(20.0)


@given(seed=seeds, low=st.floats(0, 1), high=st.floats(0, 1))
def test_cutmix_minmax_bounds_the_sides(seed: int, low: float, high: float) -> None:
    low, high = sorted((low, high))
    share = lf.CutMix(minmax=(low, high), per="sample")(torch.empty(8, 3, 20, 30), seeded(seed)).share[:, 0]
    for one in share:
        edges = box(one)
        if edges is None:
            assert math.floor(20 * low) == 0 or math.floor(30 * low) == 0
            continue
        top, bottom, left, right = edges
        assert math.floor(20 * low) <= bottom - top <= math.floor(20 * high)
        assert math.floor(30 * low) <= right - left <= math.floor(30 * high)


def test_cutmix_minmax_puts_boxes_everywhere() -> None:
    share = lf.CutMix(minmax=(0.5, 0.5), per="sample")(torch.empty(2000, 1, 20, 20), seeded(0)).share
    covered = 1 - share.mean((0, 1))
    assert_close(covered, covered.flip(0), atol=0.06, rtol=0)
    assert_close(covered, covered.flip(1), atol=0.06, rtol=0)
    assert covered[0, 0] > 0  # boxes touch every corner
    assert covered[9, 9] > 0.7


def test_mixup_is_constant_and_beta() -> None:
    mix = lf.MixUp(0.8, per="sample")(torch.empty(20_000, 1, 2, 2), seeded(0))
    assert (mix.share.amax((1, 2, 3)) == mix.share.amin((1, 2, 3))).all()
    beta = torch.distributions.Beta(0.8, 0.8)
    assert abs(mix.lam.mean() - 0.5) < 0.01
    assert abs(mix.lam.var() - beta.variance) < 0.005
    one = lf.MixUp(0.8)(torch.empty(8, 1, 2, 2), seeded(0))
    assert len(one.lam.unique()) == 1


def test_random_patches_are_scattered_and_exact() -> None:
    mix = lf.RandomPatches(patch=16)(torch.empty(500, 3, 224, 224), seeded(0))
    tokens = mix.tokens((14, 14))
    assert set(tokens.unique().tolist()) == {0.0, 1.0}
    assert abs(mix.lam.mean() - 0.5) < 0.05
    assert tokens.mean(0).std() < 0.05  # every place alike
    assert lf.RandomPatches(0.1)(torch.empty(500, 3, 64, 64), seeded(0)).lam.std() > mix.lam.std()
    half = lf.RandomPatches(1e9)(torch.empty(50, 3, 224, 224), seeded(0))
    assert_close(half.lam, torch.full((50,), 0.5))  # as many as wanted, to the patch


@given(seed=seeds, height=st.integers(1, 16), width=st.integers(1, 16))
def test_block_patches_never_overshoot(seed: int, height: int, width: int) -> None:
    mixer = lf.BlockPatches(patch=1)
    for wanted in {0, 1, height * width // 2, height * width}:
        chosen = mixer._chosen(torch.tensor([wanted]), (height, width), seeded(seed))
        assert chosen.shape == (1, height, width)
        assert chosen.sum() <= wanted
        if wanted == height * width:
            assert chosen.all()


def test_block_patches_propose_as_beit_does() -> None:
    """Areas uniform up to what is missing, aspects log-uniform between 0.3 and 1/0.3, ten tries."""
    generator = seeded(0)
    proposals = [list(lf.BlockPatches()._proposals(16, 60, generator)) for _ in range(300)]
    assert {len(tries) for tries in proposals} == {10}
    area, aspect, top, left = torch.tensor([block for tries in proposals for block in tries]).T
    for values, low, high in [(area, 16, 60), (aspect.log(), math.log(0.3), -math.log(0.3)), (top, 0, 1), (left, 0, 1)]:
        assert low <= values.min() < low + 0.01 * (high - low)
        assert high - 0.01 * (high - low) < values.max() <= high
        assert abs(values.mean() - (low + high) / 2) < 0.02 * (high - low)


def test_block_patches_are_not_small() -> None:
    """Where 16 patches are wanted they mostly are one rectangle, since blocks of at least 16 are tried."""
    whole = 0
    for seed in range(100):
        chosen = lf.BlockPatches()._chosen(torch.tensor([16]), (14, 14), seeded(seed))[0]
        whole += int(12 <= chosen.sum() == chosen.any(1).sum() * chosen.any(0).sum())
    assert whole > 60


def test_block_patches_are_blocks() -> None:
    """Far more neighbours agree than among scattered patches, and nearly all that was wanted is there."""

    def agreement(mixer: lf.mixers.Mixer) -> float:
        tokens = mixer(torch.empty(200, 3, 224, 224), seeded(0)).tokens((14, 14))
        return float((tokens[:, 1:] == tokens[:, :-1]).float().mean())

    assert agreement(lf.BlockPatches()) > agreement(lf.RandomPatches()) + 0.15
    wanted = torch.full((200,), 75)
    counts = lf.BlockPatches()._chosen(wanted, (14, 14), seeded(0)).sum((1, 2))
    assert counts.float().mean() > 65


def test_choose_keeps_its_probabilities() -> None:
    images = torch.empty(1, 1, 4, 4)
    choose = lf.Choose([lf.MixUp(), lf.NoMix()], [0.3, 0.7])
    generator = seeded(0)
    unmixed = sum(bool((choose(images, generator).share == 1).all()) for _ in range(1000)) / 1000
    assert abs(unmixed - 0.7) < 0.05
    each = lf.Choose([lf.MixUp(), lf.NoMix()], [0.3, 0.7], per="sample")
    mix = each(torch.empty(2000, 1, 4, 4), seeded(0))
    plain = mix.lam == 1
    assert abs(plain.float().mean() - 0.7) < 0.04
    assert torch.equal(mix.partner[plain], torch.arange(2000)[plain])
    assert torch.equal(mix.partner[~plain], torch.arange(1999, -1, -1)[~plain])
    assert lf.Choose([lf.NoMix()], [1.0])(images).lam == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lf.CutMix(-1.0), "alpha.*must be a positive number, not -1.0"),
        (lambda: lf.CutMix(float("nan")), "alpha"),
        (lambda: lf.MixUp(0.0), "NoMix"),
        (lambda: lf.RandomPatches(-0.1), "alpha"),
        (lambda: lf.CutMix(grid=0), "grid"),
        (lambda: lf.CutMix(minmax=(0.8, 0.2)), "minmax"),
        (lambda: lf.CutMix(pairing="roll"), "pairing must be 'flip'"),  # type: ignore[arg-type]
        (lambda: lf.CutMix(minmax=(0.1, 0.2, 0.3)), "minmax must be two parts"),  # type: ignore[arg-type]
        (lambda: lf.CutMix(per="elem"), "per must be 'batch', 'pair' or 'sample'.*not 'elem'"),  # type: ignore[arg-type]
        (lambda: lf.MixUp(per="pair", pairing="permute"), "per='pair' needs pairing='flip'.*not 'permute'"),
        (lambda: lf.Choose([lf.NoMix()], [1.0], per=True), "per must be"),  # type: ignore[arg-type]
        (lambda: lf.BlockPatches(patch=0), "patch"),
        (lambda: lf.Choose([lf.NoMix()], [0.5, 0.5]), "a probability for each mixer, not 2 for 1"),
        (lambda: lf.Choose([lf.NoMix(), lf.MixUp()], [0.5, 0.6]), "sum to 1"),
        (lambda: lf.CutMix(grid=16)(torch.empty(2, 3, 40, 64)), "40×64 pixels do not divide into cells of 16×16"),
        (lambda: lf.RandomPatches()(torch.empty(2, 3, 40, 64)), "40×64 pixels do not divide into patches"),
        (lambda: lf.CutMix()(torch.empty(2, 3, 8, 8), torch.tensor([1, 2])), r"labels come later, with mix\.blend"),  # type: ignore[arg-type]
        (lambda: lf.CutMix()(torch.empty(3, 40, 64)), r"images of shape \(B, C, H, W\)"),
    ],
)
def test_bad_input(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


def test_a_batch_is_mixed_in_one_place() -> None:
    choose = lf.Choose([lf.MixToken(patch=4), lf.CutMix()], [0.5, 0.5], per="sample")
    with pytest.raises(ValueError, match="choose per batch"):
        choose(torch.rand(4, 3, 16, 16))
    some = lf.Choose([lf.MixToken(patch=4), lf.NoMix()], [0.5, 0.5], per="sample")
    assert some(torch.rand(4, 3, 16, 16)).at == "tokens"
