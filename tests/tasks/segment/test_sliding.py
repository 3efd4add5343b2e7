"""Inference by windows, scales and flips, against whole images and naive loops."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.testing import assert_close

from labelflow.tasks.dense.layers import fit
from labelflow.tasks.segment.sliding import Inference, classify, resize, slide, starts

SCALES = (0.75, 1.0, 1.25, 1.5, 1.75)  # Token Labeling's multi-scale test


@pytest.fixture
def model() -> nn.Module:
    """Sees a neighbourhood, so that windows and flips make a difference."""
    return nn.Conv2d(3, 4, 5, padding=2).requires_grad_(False)


def images(height: int, width: int) -> Tensor:
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(1))


def predict(model: nn.Module, seen: Tensor, how: Inference) -> Tensor:
    """The mean of all answers' probabilities at the original size, one after another: (B, C, H, W)"""
    size, found = (seen.shape[2], seen.shape[3]), []
    for scale in how.scales:
        small = resize(seen, fit(size, how.short, how.long, scale))
        for mirrored in (False, True)[: 1 + how.flips]:
            asked = torch.flip(small, [3]) if mirrored else small
            stride = how.stride or round(how.window * 2 / 3)
            logits = slide(model, asked, how.window, stride) if how.window else model(asked)
            logits = torch.flip(logits, [3]) if mirrored else logits
            found.append(F.interpolate(logits, size, mode="bilinear", align_corners=False).softmax(1))
    return torch.stack(found).mean(0)


@pytest.mark.parametrize("size", [(240, 320), (100, 800), (683, 512), (31, 4000), (512, 2048)])
@pytest.mark.parametrize("scale", [0.5, 1.0, 1.75])
def test_images_fit_into_short_and_long_and_touch_one_of_them(size: tuple[int, int], scale: float) -> None:
    found = fit(size, 512, 2048, scale)
    parts = min(found) / (512 * scale), max(found) / (2048 * scale)
    assert max(parts) == pytest.approx(1, abs=0.01)
    assert found[0] / found[1] == pytest.approx(size[0] / size[1], rel=0.1)  # sides are whole numbers


def test_one_window_is_the_whole_image(model: nn.Module) -> None:
    for height, width in ((16, 16), (9, 16), (7, 5)):
        assert_close(slide(model, images(height, width), 16, 11), model(images(height, width)))
    whole = classify(model, images(12, 16), Inference(short=12, long=16))
    assert torch.equal(classify(model, images(12, 16), Inference(short=12, long=16, window=16)), whole)
    assert torch.equal(whole, model(images(12, 16)).argmax(1))


def test_windows_of_a_pointwise_model_are_the_whole_image() -> None:
    pointwise = nn.Conv2d(3, 4, 1).requires_grad_(False)
    for window, stride in ((8, 8), (8, 5), (7, 3)):
        assert_close(slide(pointwise, images(21, 30), window, stride), pointwise(images(21, 30)))


def test_overlapping_logits_are_averaged(model: nn.Module) -> None:
    seen = images(10, 20)
    total, count = torch.zeros(2, 4, 10, 20), torch.zeros(10, 20)
    for top in (0, 2):
        for left in (0, 6, 12):
            total[:, :, top : top + 8, left : left + 8] += model(seen[:, :, top : top + 8, left : left + 8])
            count[top : top + 8, left : left + 8] += 1
    found = slide(model, seen, 8, 6)
    assert_close(found, total / count)
    assert not torch.allclose(found, model(seen))


@pytest.mark.parametrize(
    ("length", "window", "stride"), [(1000, 512, 341), (10, 8, 8), (8, 8, 3), (5, 8, 2), (9, 4, 1)]
)
def test_windows_cover_everything_and_stay_inside(length: int, window: int, stride: int) -> None:
    begins = starts(length, window, stride)
    covered = {place for begin in begins for place in range(begin, min(begin + window, length))}
    assert covered == set(range(length))
    assert len(set(begins)) == len(begins)
    assert all(begin + window <= max(length, window) for begin in begins)


def test_flips_make_a_mirrored_image_a_mirrored_answer(model: nn.Module) -> None:
    how = Inference(short=16, flips=True)
    mirrored = classify(model, images(16, 24).flip(3), how)
    assert (mirrored == classify(model, images(16, 24), how).flip(2)).float().mean() > 0.99  # ties may break


@pytest.mark.parametrize(
    ("size", "how"),
    [
        ((31, 45), Inference(short=12, long=64)),
        ((31, 45), Inference(short=97, long=200, flips=True)),
        ((31, 45), Inference(short=31, long=45)),
        ((67, 9), Inference(short=7, long=40, scales=SCALES, flips=True)),
        ((1, 5), Inference(short=3, long=30, scales=(0.5, 1.0))),
        ((40, 3), Inference(short=1, long=2)),
        ((53, 70), Inference(short=20, long=64, window=16, scales=(0.7, 1.3), flips=True)),
    ],
)
def test_strips_of_rows_give_the_likeliest_classes_of_whole_images(
    model: nn.Module, size: tuple[int, int], how: Inference
) -> None:
    seen = images(*size)
    likely, classes = predict(model, seen, how).topk(2, 1)
    clear = likely[:, 0] - likely[:, 1] > 1e-5  # rounding decides where two are alike
    assert clear.float().mean() > 0.99
    for rows in (1, 7, 64):
        found = classify(model, seen, how, rows)
        assert (found.shape, found.dtype) == ((2, *size), torch.long)
        assert torch.equal(found[clear], classes[:, 0][clear])


def test_classes_are_found_without_the_probabilities_of_all_pixels() -> None:
    """No tensor is larger than a strip of the image, or the image."""
    largest = 0

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            found = func(*args, **(kwargs or {}))
            largest = max(largest, found.numel() if isinstance(found, Tensor) else 0)
            return found

    many = nn.Conv2d(3, 50, 1).requires_grad_(False)
    how = Inference(short=16, long=16, scales=(0.5, 1.0), flips=True)
    with Watch():
        classify(many, images(96, 96), how, rows=4)
    assert largest == 2 * 3 * 96 * 96
    with Watch():
        predict(many, images(96, 96), how)
    assert largest >= 2 * 50 * 96 * 96  # which is what it would be


def test_what_cannot_be_is_told() -> None:
    with pytest.raises(ValueError, match="leaves gaps"):
        starts(10, 4, 5)
    with pytest.raises(ValueError, match="gaps"):
        Inference(window=4, stride=5)
    with pytest.raises(ValueError, match="short ≤ long"):
        Inference(short=512, long=256)
    with pytest.raises(ValueError, match="scales"):
        Inference(scales=())
