"""Both kinds of saliency, against their definitions pixel by pixel."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy import ndarray
from torch import Generator, Tensor
from torch.testing import assert_close

import labelflow as lf
from labelflow.guides import GUIDES, UnmixedBatch
from labelflow.guides.saliency import grey
from labelflow.mixers import make_mixer, mix_batch
from labelflow.spec import build

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def unmixed(colours: Tensor) -> UnmixedBatch:
    """Of colours in [0, 1]."""
    mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (MEAN, STD))
    student: lf.Student = None  # type: ignore[assignment]  # nobody asks it
    return UnmixedBatch((colours - mean) / std, torch.zeros(len(colours), 2), student, MEAN, STD)


def saliency(colours: Tensor, kind: str = "fine") -> Tensor:
    return GUIDES["saliency"](kind=kind)(unmixed(colours)).importance  # type: ignore[call-arg]


def picture(height: int, width: int, seed: int, batch: int = 1) -> Tensor:
    """Colours as a file has them, in 256 steps; smooth, with some noise."""
    generator = Generator().manual_seed(seed)
    coarse = torch.rand(batch, 3, 4, 5, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")
    return ((0.8 * smooth + 0.2 * torch.rand(smooth.shape, generator=generator)) * 255).round() / 255


def grey_of(colours: Tensor) -> ndarray:
    """(3, H, W) in [0, 1] -> (H, W) whole numbers"""
    red, green, blue = (colours.double() * 255).round().long().numpy()
    return (299 * red + 587 * green + 114 * blue + 500) // 1000


def mirror(index: int, side: int) -> int:
    """… 2 1 | 0 1 2 … side-1 | side-2 …"""
    if side == 1:
        return 0
    index = abs(index) % (2 * side - 2)
    return min(index, 2 * side - 2 - index)


def fine_oracle(values: ndarray) -> ndarray:
    height, width = values.shape
    for _ in range(2):
        smooth = np.zeros_like(values)
        for y in range(height):
            for x in range(width):
                for i, a in ((-1, 1), (0, 2), (1, 1)):
                    for j, b in ((-1, 1), (0, 2), (1, 1)):
                        smooth[y, x] += a * b * values[mirror(y + i, height), mirror(x + j, width)]
        values = (smooth + 8) // 16
    on, off = np.zeros_like(values), np.zeros_like(values)
    for n in (12, 24, 48, 28, 56, 112):
        for y in range(height):
            for x in range(width):
                window = values[max(y - n + 1, 0) : y + n + 1, max(x - n + 1, 0) : x + n + 1]
                others, around = window.size - 1, int(window.sum()) - values[y, x]
                difference = values[y, x] * others - around  # times the number of others
                on[y, x] += max(difference, 0) // max(others, 1)
                off[y, x] += max(-difference, 0) // max(others, 1)
    total = sum(255 * part // max(part.max(), 1) for part in (on, off))
    return total / max(total.max(), 1)


def test_grey_values_are_exact() -> None:
    """Half a step up, too, which 0.299·r + 0.587·g + 0.114·b in float32 gets wrong now and then."""
    colours = torch.randint(256, (1, 3, 200, 200)) / 255
    assert torch.equal(grey(unmixed(colours).denormalised)[0].long(), torch.from_numpy(grey_of(colours[0])))


@settings(max_examples=12)
@given(height=st.integers(1, 33), width=st.integers(1, 33), seed=st.integers(0, 1000))
def test_fine_grained_saliency_is_its_definition(height: int, width: int, seed: int) -> None:
    colours = picture(height, width, seed, batch=2)
    found = saliency(colours)
    assert found.dtype == torch.float32
    for one, expected in zip(found, map(fine_oracle, map(grey_of, colours)), strict=True):
        assert_close(one, torch.from_numpy(expected).float())


def test_surroundings_that_end_inside_the_image() -> None:
    colours = picture(63, 120, seed=1)
    assert_close(saliency(colours)[0], torch.from_numpy(fine_oracle(grey_of(colours[0]))).float())


def resized(values: ndarray, height: int, width: int) -> ndarray:
    """Bilinear, pixels being squares."""
    places = []
    for side, count in zip(values.shape, (height, width), strict=True):
        at = np.clip((np.arange(count) + 0.5) * side / count - 0.5, 0, side - 1)
        weights = np.zeros((count, side))
        for row, place in enumerate(at):
            low = int(place)
            weights[row, low] += 1 - (place - low)
            weights[row, min(low + 1, side - 1)] += place - low
        places.append(weights)
    return places[0] @ values @ places[1].T


def filtered(values: ndarray, weights: ndarray) -> ndarray:
    reach, out = len(weights) // 2, np.zeros_like(values)
    height, width = values.shape
    for y in range(height):
        for x in range(width):
            rows = [mirror(y + step, height) for step in range(-reach, reach + 1)]
            columns = [mirror(x + step, width) for step in range(-reach, reach + 1)]
            out[y, x] = (weights * values[np.ix_(rows, columns)]).sum()
    return out


def spectral_oracle(values: ndarray, size: tuple[int, int], line: ndarray, power: int) -> ndarray:
    """Computed at that size; line: by what the magnitude is smoothed before it is raised to a power."""
    small = resized(values.astype(float), *size)
    left, right = (np.exp(-2j * math.pi * np.outer(np.arange(side), np.arange(side)) / side) for side in size)
    spectrum = left @ small @ right
    amplitude, phase = np.log(np.abs(spectrum)), np.angle(spectrum)
    residual = amplitude - filtered(amplitude, np.full((3, 3), 1 / 9))
    back = left.conj() @ (np.exp(residual) * np.exp(1j * phase)) @ right.conj()
    found = filtered(np.abs(back), np.outer(line, line) / line.sum() ** 2) ** power
    large = resized(found, *values.shape)
    return large / large.max()


@pytest.mark.parametrize(("height", "width"), [(64, 64), (50, 97)])
def test_spectral_residual_is_its_definition(height: int, width: int) -> None:
    colours = picture(height, width, seed=3, batch=2)
    found = saliency(colours, "spectral")
    line = np.exp(-(np.arange(-2, 3) ** 2) / 128)
    expecteds = (spectral_oracle(grey_of(one), (64, 64), line, 2) for one in colours)
    for one, expected in zip(found, expecteds, strict=True):
        assert_close(one, torch.from_numpy(expected).float(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("height", "width"), [(40, 33), (60, 140)])
def test_the_magnitude_is_guidedmixup_s_definition(height: int, width: int) -> None:
    """At up to 128 pixels a side, smoothed by a Gaussian of 7 places, σ = 3, and not squared."""
    colours = picture(height, width, seed=3)
    line = np.exp(-(np.arange(-3, 4) ** 2) / 18)
    expected = spectral_oracle(grey_of(colours[0]), (height, min(width, 128)), line, 1)
    assert_close(saliency(colours, "magnitude")[0], torch.from_numpy(expected).float(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["fine", "spectral", "magnitude"])
@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (64, 80)])
def test_a_flat_image_has_no_saliency(kind: str, shape: tuple[int, int]) -> None:
    """Whatever the others of its batch have; and what it has does not depend on them."""
    flat, lively = torch.full((1, 3, *shape), 0.3), picture(*shape, seed=0)
    found = saliency(torch.cat([flat, lively]), kind)
    assert not found[0].any()
    assert_close(found[1:], saliency(lively, kind))


@pytest.mark.parametrize("kind", ["fine", "spectral", "magnitude"])
@pytest.mark.parametrize("ink", [0.0, 1.0])
def test_a_blob_attracts_the_box(kind: str, ink: float) -> None:
    """Bright or dark, it lies in the partner's box, wherever it is."""
    colours = torch.full((4, 3, 96, 128), 0.5) + 0.02 * torch.rand(4, 3, 96, 128)
    places = [(12, 20), (70, 110), (48, 9), (30, 60)]
    for one, (row, column) in zip(colours, places, strict=True):
        one[:, row - 4 : row + 4, column - 4 : column + 4] = ink
    mixer = make_mixer(f"saliencymix(kind={kind!r})")
    mixes = [mix_batch(mixer, unmixed(colours), Generator().manual_seed(seed))[0] for seed in range(30)]
    shares = torch.stack([mix.share[:, 0] for mix in mixes])
    for share, (row, column) in zip(shares.unbind(1), reversed(places), strict=True):  # "flip"
        pasted = 1 - share  # (30, 96, 128)
        wide = pasted.sum((1, 2)) > 16 * 24
        assert wide.sum() > 15
        assert pasted[wide, row, column].all()


def test_it_changes_no_numbers_and_needs_no_gradient() -> None:
    seen = unmixed(picture(32, 32, seed=0))
    seen.images.requires_grad_()
    guide = build("saliency", GUIDES, "guide")
    assert not guide(seen).importance.requires_grad
    assert guide.parameters == 0
    plain = guide(seen).importance
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(guide(seen).importance, plain)


def test_bad_kind() -> None:
    with pytest.raises(ValueError, match="kind must be one of fine, spectral, magnitude, not 'rough'"):
        make_mixer("saliencymix(kind='rough')")
