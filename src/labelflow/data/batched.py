"""Augmentation of whole batches, on the device that has them, with the pixels that Pillow makes of each image.

Everything here is a function of its arguments: random draws are made elsewhere, and the host waits for nothing. What
depends on single bytes is a table. Operations that move pixels are in `resampling.py`.

Shapes: images (B, 3, H, W) uint8, tables (B, 256) or (B, 3, 256) uint8, factors (B,) float.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy import ndarray
from PIL import Image
from torch import Tensor

EVERY_BYTE = np.arange(256, dtype=np.uint8)[None, :, None].repeat(3, 2)  # (1, 256, 3)


def table(change: Callable[..., Image.Image], *arguments: Any) -> ndarray:
    """What a change of colours makes of each byte, (256,) uint8, where it looks at nothing else.

    change: such as timm's `invert`, `posterize`, `solarize`, `solarize_add` and `brightness`.

    >>> from timm.data import auto_augment
    >>> table(auto_augment.solarize, 200)[[0, 199, 200, 255]].tolist()
    [0, 199, 55, 0]
    """
    return np.array(change(Image.fromarray(EVERY_BYTE), *arguments))[0, :, 0]


def apply_tables(images: Tensor, tables: Tensor) -> Tensor:
    """Each byte becomes what its image's table has for it, or the table of its channel."""
    tables = tables if tables.ndim == 3 else tables[:, None].expand(-1, images.shape[1], -1)
    return tables.gather(2, images.flatten(2).long()).view(images.shape)


def histograms(images: Tensor) -> Tensor:
    """How often each byte occurs in each channel: (B, 3, 256) int32"""
    values = images.flatten(2).long()
    counts = torch.zeros(*values.shape[:2], 256, dtype=torch.int32, device=images.device)
    return counts.scatter_add_(2, values, torch.ones_like(counts[:1, :1, :1]).expand_as(values))


def equalize_tables(images: Tensor) -> Tensor:
    """(B, 3, 256)"""
    counts = histograms(images)
    darker = counts.cumsum(2, dtype=torch.int32) - counts  # pixels that are darker than each byte
    step = (darker * (counts > 0)).amax(2, keepdim=True) // 255  # all pixels but the brightest, spread evenly
    tables = (darker + step // 2) // step.clamp(min=1)
    return torch.where(step > 0, tables, _bytes(images)).clamp(max=255).byte()


def autocontrast_tables(images: Tensor) -> Tensor:
    """(B, 3, 256). In double precision, as Pillow, where there is any: otherwise some bytes are rounded down."""
    precise = torch.float32 if images.device.type == "mps" else torch.float64
    low, high = (bound.to(precise) for bound in images.flatten(2).aminmax(dim=2, keepdim=True))
    scale = torch.full_like(low, 255) / (high - low).clamp(min=1)
    values = _bytes(images)
    return torch.where(high > low, values * scale - low * scale, values).clamp(0, 255).byte()


def contrast_tables(images: Tensor, factors: Tensor) -> Tensor:
    """Away from the mean grey of each image, or towards it: (B, 256)"""
    grey = _grey(images)
    pixels = grey[0].numel()
    mean = (2 * grey.sum((1, 2, 3)) + pixels) // (2 * pixels)  # rounded
    return _blend(mean[:, None], _bytes(images)[None], factors)


def adjust_saturation(images: Tensor, factors: Tensor) -> Tensor:
    """Away from grey, or towards it. timm's `desaturate(factor)` is a factor of 1 - factor."""
    return _blend(_grey(images), images, factors)


def adjust_sharpness(images: Tensor, factors: Tensor) -> Tensor:
    """Away from a smoothed image, or towards it. The outermost pixels stay as they are."""
    pixels = images.short()
    rows = pixels[:, :, :-2] + pixels[:, :, 1:-1] + pixels[:, :, 2:]
    inner = pixels[:, :, 1:-1, 1:-1]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * inner  # 13 times the mean
    inner.copy_((2 * total + 13) // 26)  # rounded
    return _blend(pixels, images, factors)


def blur_weights(radius: float) -> ndarray:
    """Of the pixels at a distance of 0, 1 and 2 in each pass of a blur, (3,) int32, of 2²⁴: a box of fractional length
    (Gwosdek et al., 2011), in single precision, as Pillow."""
    variance = np.float32(radius) * np.float32(radius) / np.float32(3)  # of each of three passes
    length = np.float32(np.sqrt(12 * np.float64(variance) + 1))
    whole = np.floor((length - 1) / 2)
    assert 0 <= whole <= 1, f"a radius of {radius} needs more than 5 pixels"
    part = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance) / (6 * (variance - (whole + 1) ** 2))
    full = int(np.float32(2**24) / (2 * (whole + part) + 1))
    edge = int(2**24 - (2 * whole + 1) * full) // 2
    return np.array([full, full, edge] if whole else [full, edge, 0], np.int32)


def gaussian_blur(images: Tensor, weights: Tensor) -> Tensor:
    """Three passes along rows, and three along columns, whose weights, (B, 3), are those of `blur_weights`."""
    for dim in (3, 3, 3, 2, 2, 2):
        images = _blur(images, weights, dim)
    return images


def _blur(images: Tensor, weights: Tensor, dim: int) -> Tensor:
    here, near, far = weights.view(-1, 3, 1, 1, 1).unbind(1)
    padded = pad_edges(images, dim).int()
    pixels = [padded.narrow(dim, first, images.shape[dim]) for first in range(5)]
    total = (pixels[2] * here).add_((pixels[1] + pixels[3]) * near).add_((pixels[0] + pixels[4]) * far)
    return ((total + 2**23) >> 24).byte()  # rounded: the upper 8 of 32 bits, which are right although the sign is not


def pad_edges(images: Tensor, dim: int) -> Tensor:
    """Two more rows or columns on each side, like the outermost ones."""
    size = images.shape[dim]
    return images.index_select(dim, torch.arange(-2, size + 2, device=images.device).clamp(0, size - 1))


def flip(images: Tensor, mirrored: Tensor) -> Tensor:
    """Left to right, where `mirrored`, (B,) bool."""
    return torch.where(mirrored[:, None, None, None], images.flip(3), images)


def _bytes(images: Tensor) -> Tensor:
    """Every byte, (256,) int32, where the images are."""
    return torch.arange(256, dtype=torch.int32, device=images.device)


def _grey(images: Tensor) -> Tensor:
    """As Pillow converts to "L": (B, 1, H, W) int32"""
    red, green, blue = images.split(1, dim=1)
    weighted = (19595 * red.int()).add_(green, alpha=38470).add_(blue, alpha=7471)
    return (weighted + 2**15) >> 16  # rounded


def _blend(start: Tensor, end: Tensor, factors: Tensor) -> Tensor:
    """From `start`, a factor of 0, to `end`, a factor of 1, and beyond. Rounded down, in single precision, as Pillow.

    Product and sum are kernels of their own, since a fused one would round differently.
    """
    factors = factors.float().view(-1, *[1] * (end.ndim - 1))
    return (end - start.float()).mul_(factors).add_(start).clamp_(0, 255).byte()
