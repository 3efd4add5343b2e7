"""`lf.Mixup` beside timm's: the same algebra draw by draw, the same law of draws."""

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import timm.data
import torch
from hypothesis import given
from hypothesis import strategies as st
from timm.data.mixup import mixup_target, rand_bbox
from timm.models import VisionTransformer
from torch import Generator, Tensor, nn
from torch.testing import assert_close
from torchvision.transforms import v2

import labelflow as lf
from labelflow.mixers.base import Per
from labelflow.mixers.cutmix import boxes_around, inside, sides

MODES = ["batch", "pair", "elem"]
SETTINGS: dict[str, dict[str, Any]] = {
    "mixup": {},
    "cutmix": {"mixup_alpha": 0.0, "cutmix_alpha": 1.0},
    "deit": {"mixup_alpha": 0.8, "cutmix_alpha": 1.0, "switch_prob": 0.3},
    "sometimes": {"mixup_alpha": 0.2, "cutmix_alpha": 0.6, "prob": 0.7},
    "minmax": {"mixup_alpha": 0.0, "cutmix_minmax": (0.2, 0.8), "correct_lam": False},
    "uncorrected": {"mixup_alpha": 0.5, "cutmix_alpha": 1.0, "correct_lam": False},
}


def seeded(seed: int) -> Generator:
    return Generator().manual_seed(seed)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SETTINGS)
@given(batch=st.integers(1, 4).map(lambda half: 2 * half), smoothing=st.floats(0, 0.5), seed=st.integers(0, 2**31))
def test_what_a_draw_makes_is_timms(name: str, mode: str, batch: int, smoothing: float, seed: int) -> None:
    """Given λ and the share of each pixel, images are pasted or blended and targets made as timm does."""
    mixup_fn = lf.Mixup(**SETTINGS[name], mode=mode, label_smoothing=smoothing, num_classes=5)
    images, classes = torch.rand(batch, 3, 12, 20), torch.arange(batch) % 5
    before = images.clone()
    mix = mixup_fn.mix(images, seeded(seed))
    mixed, target = mixup_fn(images, classes, seeded(seed))
    assert torch.equal(images, before)
    assert_close(target, mixup_target(classes, 5, mix.lam[:, None], smoothing))
    assert target.dtype == torch.float32
    for one, share, own, partner in zip(mixed, mix.share, images, images.flip(0), strict=True):
        if set(share.unique().tolist()) <= {0.0, 1.0}:
            assert torch.equal(one, torch.where(share == 1, own, partner))
        else:
            assert len(share.unique()) == 1
            assert_close(one, own * share + partner * (1 - share))


def observed(mixup_fn: Callable[[Tensor, Tensor], Any], calls: int, batch: int, side: int) -> dict[str, np.ndarray]:
    """What many batches show: the first half of the images is 1, the second 0, so that a mixed image is its own share.

    Returned for each batch and image: λ of pixels, λ of targets, kind, and the box's top, left, height and width.
    """
    half = batch // 2
    first = (torch.arange(batch) < half).float()
    shares, lams = [], []
    for _ in range(calls):
        images, target = mixup_fn(first.reshape(-1, 1, 1, 1).repeat(1, 1, side, side), first.long())
        own = first.bool()
        shares.append(torch.where(own[:, None, None], images[:, 0], 1 - images[:, 0]))  # (B, H, W)
        lams.append(torch.where(own, target[:, 1], target[:, 0]))
    share, lam = torch.stack(shares), torch.stack(lams)
    pasted = (share == 0).float()
    rows, columns = pasted.amax(-1), pasted.amax(-2)  # (calls, B, side)
    pixels, low, high = share.mean((-2, -1)), share.amin((-2, -1)), share.amax((-2, -1))
    kind = (low < 1) * (1 + (low == high).long())  # 0 not mixed, 1 cut, 2 blended
    values = {"pixels": pixels, "target": lam, "gap": (lam - pixels).round(decimals=4), "kind": kind}
    values |= {"top": rows.argmax(-1), "left": columns.argmax(-1), "height": rows.sum(-1), "width": columns.sum(-1)}
    return {key: value.double().numpy() for key, value in values.items()}


def apart(one: np.ndarray, two: np.ndarray) -> float:
    """The Kolmogorov-Smirnov distance of two samples."""
    both = np.sort(np.concatenate([one, two]))
    below = [np.searchsorted(np.sort(sample), both, side="right") / len(sample) for sample in (one, two)]
    return float(np.abs(below[0] - below[1]).max())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SETTINGS)
def test_the_law_of_draws_is_timms(name: str, mode: str) -> None:
    """Of λ in pixels and in targets, of the choice, of boxes; and who shares a draw with whom."""
    calls, batch, side = (1000, 2, 32) if mode == "batch" else (200, 20, 32)
    np.random.seed(0)  # noqa: NPY002
    settings = {**SETTINGS[name], "mode": mode, "label_smoothing": 0.0, "num_classes": 2}
    timms = observed(timm.data.Mixup(**settings), calls, batch, side)
    ours = observed(lf.Mixup(**settings), calls, batch, side)
    seen = 1 if mode == "batch" else batch // (2 if mode == "pair" else 1)  # images with a draw of their own
    count = calls * seen
    bound = 1.95 * (2 / count) ** 0.5 + 0.03  # one in a thousand; and what one pixel of 32 moves
    for key in timms:
        assert apart(timms[key][:, :seen].flatten(), ours[key][:, :seen].flatten()) < bound, key
    for values in (timms, ours):
        rows = np.stack([values[key] for key in ("pixels", "target", "kind", "top", "left")], -1)
        same = np.isclose(rows[:, :, None], rows[:, None, :], atol=1e-5).all(-1)  # (calls, B, B)
        together = same.mean(0) > 0.9
        partner = np.eye(batch, dtype=bool) | np.fliplr(np.eye(batch, dtype=bool))
        expected = {"batch": np.ones_like(partner), "pair": partner, "elem": np.eye(batch, dtype=bool)}
        assert (together == expected[mode]).all()


@given(lam=st.floats(0, 1), height=st.integers(1, 60), width=st.integers(1, 60), seed=st.integers(0, 2**31))
def test_boxes_are_timms_but_for_the_last_pixel_of_odd_sides(lam: float, height: int, width: int, seed: int) -> None:
    """Around the same centre. timm gives odd sides their last pixel back since 1.0.29; the papers ran without it."""
    np.random.seed(seed)  # noqa: NPY002
    centre = np.random.randint(0, height), np.random.randint(0, width)  # noqa: NPY002
    np.random.seed(seed)  # noqa: NPY002
    top, bottom, left, right = rand_bbox((height, width), lam)
    drawn = torch.tensor([lam], dtype=torch.float64)
    box = boxes_around(torch.tensor([centre]), sides(drawn, (height, width)))[0].clamp(min=0)
    rows, columns = sides(drawn, (height, width))[0].tolist()
    assert box[:2].tolist() == [top, left]
    assert min(int(box[2]) + rows % 2, height) == bottom
    assert min(int(box[3]) + columns % 2, width) == right


@given(lam=st.floats(0, 1), height=st.integers(1, 60), width=st.integers(1, 60), seed=st.integers(0, 2**31))
def test_boxes_are_torchvisions(lam: float, height: int, width: int, seed: int) -> None:
    cutmix = v2.CutMix(num_classes=2)
    cutmix._dist = SimpleNamespace(sample=lambda shape: torch.tensor(lam, dtype=torch.float64))
    torch.manual_seed(seed)
    left, top, right, bottom = cutmix.make_params([torch.empty(2, 3, height, width)])["box"]
    torch.manual_seed(seed)
    column, row = int(torch.randint(width, (1,))), int(torch.randint(height, (1,)))
    side = sides(torch.tensor([lam], dtype=torch.float64), (height, width))
    share = 1 - inside(boxes_around(torch.tensor([[row, column]]), side), height, width)[0, 0]
    expected = torch.ones(height, width)
    expected[top:bottom, left:right] = 0
    assert torch.equal(share, expected)


@pytest.mark.parametrize(("mode", "per"), [("batch", "batch"), ("pair", "pair"), ("elem", "sample")])
def test_it_is_short_for_a_choice_of_mixers(mode: str, per: Per) -> None:
    mixup_fn = lf.Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, prob=0.9, switch_prob=0.5, mode=mode)
    mixer = lf.Choose([lf.MixUp(0.8, per=per), lf.CutMix(1.0, per=per), lf.NoMix()], [0.45, 0.45, 0.1], per=per)
    for seed in range(20):
        ours, theirs = (mix(torch.empty(8, 3, 16, 16), seeded(seed)) for mix in (mixup_fn.mix, mixer))
        assert torch.equal(ours.share, theirs.share)
        assert torch.equal(ours.partner, theirs.partner)


def test_arguments_are_timms() -> None:
    ours, timms = (
        {name: parameter.default for name, parameter in inspect.signature(kind).parameters.items()}
        for kind in (lf.Mixup, timm.data.Mixup)
    )
    assert list(timms.items()) == list(ours.items())[: len(timms)]  # before 1.0.31 timm has no multi_label


def test_multi_label_targets_are_timms() -> None:
    mixup_fn = lf.Mixup(num_classes=4, multi_label=True, label_smoothing=0.2, mode="elem")
    images, labels = torch.rand(6, 3, 8, 8), (torch.rand(6, 4) > 0.5).long()
    lam = mixup_fn.mix(images, seeded(1)).lam[:, None]
    y = labels * 0.8 + 0.1
    assert_close(mixup_fn(images, labels, seeded(1))[1], lam * y + (1 - lam) * y.flip(0))


@pytest.mark.parametrize("mode", MODES)
def test_an_odd_batch_leaves_its_middle_image_alone(mode: str) -> None:
    images, classes = torch.rand(5, 3, 16, 16), torch.arange(5)
    mixed, target = lf.Mixup(mode=mode, label_smoothing=0.0, num_classes=5)(images, classes)
    assert_close(mixed[2], images[2])
    assert_close(target[2], torch.eye(5)[2])
    assert not torch.allclose(mixed[0], images[0])


def test_it_can_be_turned_off() -> None:
    mixup_fn = lf.Mixup(num_classes=4, label_smoothing=0.1)
    mixup_fn.mixup_enabled = False
    images, classes = torch.rand(4, 3, 8, 8), torch.arange(4)
    mixed, target = mixup_fn(images, classes)
    assert torch.equal(mixed, images)
    assert_close(target, torch.eye(4) * 0.9 + 0.025)


def small_vit() -> nn.Module:
    return VisionTransformer(32, 8, num_classes=7, embed_dim=32, depth=2, num_heads=2)


class Wrapped(nn.Module):
    """As DDP and torch.compile do."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any) -> Any:
        return self.module(*args)


@pytest.mark.parametrize("mode", MODES)
def test_align_is_tl_align(mode: str) -> None:
    aligned = lf.Aligned(small_vit())
    mixup_fn = lf.Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, mode=mode, num_classes=7)
    images, classes = torch.rand(6, 3, 32, 32), torch.arange(6)
    logits, target = mixup_fn.align(Wrapped(aligned), images, classes, seeded(3))
    mix = mixup_fn.mix(images, seeded(3))
    expected, share = aligned(mix.apply(images), mix.share)
    assert_close(logits, expected)
    assert_close(target, mixup_target(classes, 7, share[:, None], 0.1))
    if mode != "batch":  # of which this one draws MixUp, where both are the same
        assert not torch.allclose(share, mix.lam)


def test_alignment_reads_pixels() -> None:
    aligned = lf.Aligned(small_vit())
    images, classes = torch.rand(6, 3, 32, 32), torch.arange(6)
    targets = [
        lf.Mixup(0.0, 1.0, correct_lam=correct_lam, num_classes=7).align(aligned, images, classes, seeded(4))[1]
        for correct_lam in (True, False)
    ]
    assert torch.equal(*targets)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lf.Mixup(mode="half"), "mode must be 'batch', 'pair' or 'elem', not 'half'"),
        (lambda: lf.Mixup(mixup_alpha=0.0), "nothing to mix with: mixup_alpha or cutmix_alpha must be above 0"),
        (lambda: lf.Mixup(prob=1.2), r"prob must lie in \[0, 1\], not 1.2"),
        (lambda: lf.Mixup(switch_prob=-0.1), r"switch_prob must lie in \[0, 1\], not -0.1"),
        (lambda: lf.Mixup(label_smoothing=float("nan")), r"label_smoothing must lie in \[0, 1\], not nan"),
        (lambda: lf.Mixup(cutmix_minmax=(0.9, 0.1)), "minmax must be two parts of the image's side"),
        (lambda: lf.Mixup(mixup_alpha=float("inf")), "alpha.*must be a positive number, not inf"),
        (lambda: lf.Mixup(num_classes=3)(torch.rand(2, 3, 8, 8), torch.rand(2, 4)), r"targets \(B, 3\), not \(2, 4\)"),
        (lambda: lf.Mixup(num_classes=3)(torch.rand(2, 3, 8, 8), torch.tensor([0, 1, 2])), "for each of the 2 images"),
        (
            lambda: lf.Mixup(num_classes=7).align(small_vit(), torch.rand(2, 3, 32, 32), torch.tensor([0, 1])),
            r"align takes labelflow.Aligned\(model\), not the VisionTransformer itself",
        ),
    ],
)
def test_bad_input(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        make()
    assert "\n" not in str(raised.value)


def test_targets_must_fit_the_model() -> None:
    model = timm.create_model("test_vit", num_classes=10)
    with pytest.raises(ValueError, match="the model has 10 classes, and this Mixup 1000; set num_classes"):
        lf.Mixup(cutmix_alpha=1.0).align(lf.Aligned(model), torch.rand(2, 3, 160, 160), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="aligned already"):
        lf.Aligned(lf.Aligned(model))
