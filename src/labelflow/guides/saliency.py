"""Saliency that needs no network: how much a place stands out of its surroundings, or of the image's spectrum.

"Fine" and "spectral" are what OpenCV calls so, on the grey values 0 to 255 of the images as they were; whole numbers
stay exact.

Shapes: B batch, H×W pixels.
"""

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from labelflow.guides.base import Guidance, UnmixedBatch

REACHES = (12, 24, 48, 28, 56, 112)  # half the sides of the surroundings that a pixel is compared with


class Saliency:
    """Where an image stands out; a flat image has no such place, and all zeros.

    kind: "fine" compares each pixel with its surroundings at six scales (fine grained saliency, Montabone and Soto
    2010), "spectral" looks for what is unusual in the spectrum (spectral residual, Hou and Zhang 2007), "magnitude" is
    the same at up to 128 pixels a side instead of 64, smoothed less and not squared (GuidedMixup, AAAI 2023).
    """

    parameters = 0

    def __init__(self, kind: str = "fine") -> None:
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {kind!r}")
        self.kind = kind

    @torch.no_grad()
    def __call__(self, batch: UnmixedBatch) -> Guidance:
        return Guidance(KINDS[self.kind](grey(batch.denormalised)))


def grey(colours: Tensor) -> Tensor:
    """Whole numbers from 0 to 255, as float32: (B, 3, H, W) in [0, 1] -> (B, H, W)"""
    red, green, blue = colours.float().mul(255).round().unbind(1)
    return (299 * red + 587 * green + 114 * blue + 500).div_(1000).floor_()


def fine_grained(grey: Tensor) -> Tensor:
    """How much brighter or darker than its surroundings a pixel is: (B, H, W) -> the same, in [0, 1]."""
    smooth = grey
    for _ in range(2):
        smooth = (_around(smooth, (1, 2, 1)) + 8).div_(16).floor_()
    steps = torch.zeros_like(smooth, dtype=torch.int32)
    sizes = torch.zeros_like(steps)
    for difference in _differences(smooth):
        step = difference.int()  # towards 0
        steps += step
        sizes += step.abs_()
    brighter, darker = (_scaled(twice.float(), 255).floor_() for twice in (sizes + steps, sizes - steps))
    return _scaled(brighter + darker, 1)


def spectral_residual(grey: Tensor) -> Tensor:
    """What is left of an image without the usual part of its spectrum: (B, H, W) -> the same, in [0, 1]."""
    found = blurred(_residual(grey, 64, 64), 5, 8).square()
    return _scaled(_resized(_scaled(found, 1), *grey.shape[1:]), 1)


def spectral_magnitude(grey: Tensor) -> Tensor:
    """The same, finer and not squared: (B, H, W) -> the same, in [0, 1]."""
    height, width = grey.shape[1:]
    found = blurred(_residual(grey, min(height, 128), min(width, 128)), 7, 3)
    return _scaled(_resized(found, height, width), 1)


KINDS = {"fine": fine_grained, "spectral": spectral_residual, "magnitude": spectral_magnitude}


def blurred(maps: Tensor, side: int, sigma: float) -> Tensor:
    """By a Gaussian of side×side places, of sum 1: (B, H, W) -> the same"""
    bell = torch.exp(-(torch.arange(side, dtype=torch.float64) - side // 2).square() / (2 * sigma**2))
    return _around(maps, (bell / bell.sum()).tolist())


def _residual(grey: Tensor, height: int, width: int) -> Tensor:
    """The magnitude of what is unusual, for images of that size; nothing in a flat image: (B, H, W) -> (B, h, w)"""
    spectrum = torch.fft.fft2(_resized(grey, height, width))
    # An amplitude of 1 is less than the rounding of grey values makes. The logarithm of more than that is finite, and
    # frequencies that an image does not have stay silent.
    usual = _around(spectrum.abs().clamp(min=1).log(), (1, 1, 1)) / 9
    found = torch.fft.ifft2(spectrum * torch.exp(-usual)).abs()
    flat = grey.amax((1, 2), keepdim=True) == grey.amin((1, 2), keepdim=True)
    return found.masked_fill(flat, 0)


def _differences(values: Tensor) -> Iterator[Tensor]:
    """At each scale: a pixel, less the mean of the 2·reach rows and columns around it, the pixel itself left out.

    Numerators below 2²⁴ and such denominators leave the whole part of a quotient exact in float32.
    """
    height, width = values.shape[1:]
    far = min(max(REACHES), max(height, width))
    sums = values.int().cumsum(1, dtype=torch.int32).cumsum(2, dtype=torch.int32)
    sums = F.pad(sums, (far, 0, far, 0))  # of what lies above and left of a pixel, and itself; nothing beyond the edges
    sums = torch.cat([sums, sums[:, -1:].expand(-1, far, -1)], 1)
    sums = torch.cat([sums, sums[:, :, -1:].expand(-1, -1, far)], 2)
    for reach in (min(reach, far) for reach in REACHES):
        before, after = far - reach, far + reach
        top, bottom = slice(before, before + height), slice(after, after + height)
        left, right = slice(before, before + width), slice(after, after + width)
        window = sums[:, bottom, right] - sums[:, top, right]
        window -= sums[:, bottom, left]
        window += sums[:, top, left]
        area = _extent(height, reach, values)[:, None] * _extent(width, reach, values)
        yield torch.addcmul(window.float().neg_(), values, area).div_((area - 1).clamp(min=1))


def _extent(side: int, reach: int, like: Tensor) -> Tensor:
    """How many places the surroundings of each place of a line have, as far as there are any: (side,)"""
    place = torch.arange(side, device=like.device, dtype=like.dtype)
    return (place + reach + 1).clamp(max=side) - (place - reach + 1).clamp(min=0)


def _around(values: Tensor, weights: Sequence[float]) -> Tensor:
    """Weighted sums over rows and columns around each place; the edges are mirrored, as OpenCV mirrors them."""
    reach = len(weights) // 2
    for dim, pad in ((1, (0, 0, reach, reach)), (2, (reach, reach, 0, 0))):
        side = values.shape[dim]
        mirrored = F.pad(values, pad, mode="reflect" if side > reach else "replicate")
        values = mirrored.narrow(dim, 0, side) * weights[0]
        for start, weight in enumerate(weights[1:], 1):
            values.add_(mirrored.narrow(dim, start, side), alpha=weight)
    return values


def _resized(maps: Tensor, height: int, width: int) -> Tensor:
    return F.interpolate(maps.unsqueeze(1), (height, width), mode="bilinear").squeeze(1)


def _scaled(maps: Tensor, largest: float) -> Tensor:
    """From 0 on, so that each map's maximum is this; nothing stays nothing."""
    top = maps.amax((1, 2), keepdim=True)
    return maps * largest / top.where(top > 0, 1)
