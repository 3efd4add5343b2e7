"""Blur: defocus, glass, motion, zoom; and Gaussian blur, one of the extra ones.

The parameters are those of Hendrycks and Dietterich, Benchmarking Neural Network Robustness (2019), severity 1 to 5.
"""

import numpy as np
from numpy import ndarray
from numpy.random import Generator

from labelflow.robustness.corruptions.parts import as_bytes, enlarged, moved, opencv, smoothed

DEFOCUS = ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5))  # radius, σ that smooths the disc's edge
GLASS = ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2))  # σ, furthest shift, rounds
MOTION = ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))  # radius, σ
ZOOM = ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03))  # end, step, of np.arange
GAUSSIAN = (1, 2, 3, 4, 6)  # σ


def defocus_blur(image: ndarray, severity: int, random: Generator) -> ndarray:
    """A disc instead of a point."""
    return as_bytes(opencv().filter2D(image / 255.0, -1, disc(*DEFOCUS[severity - 1])))


def disc(radius: int, sigma: float) -> ndarray:
    """A disc with a smooth edge that sums to 1, and from radius 8 on, when it fills its grid, to 1.01 as published."""
    reach, smooth = (8, 3) if radius <= 8 else (radius, 5)
    place = np.arange(-reach, reach + 1)
    inside = (place[:, None] ** 2 + place**2 <= radius**2).astype(np.float32)
    return opencv().GaussianBlur(inside / inside.sum(), (smooth, smooth), sigma)


def glass_blur(image: ndarray, severity: int, random: Generator) -> ndarray:
    """Blurred, each pixel taken from near by, and blurred again."""
    sigma, furthest, rounds = GLASS[severity - 1]
    blurred = as_bytes(smoothed(image / 255.0, sigma))
    for _ in range(rounds):
        blurred = blurred.reshape(-1, 3)[sources(blurred.shape[0], blurred.shape[1], furthest, random)]
    return as_bytes(smoothed(blurred / 255.0, sigma))


def sources(height: int, width: int, furthest: int, random: Generator) -> ndarray:
    """For each pixel the index of the one it shows after a round of glass blur: (H, W).

    A round goes from the last pixel to the first and copies one from near by, which may have been copied already: its
    new colour counts then. So pixels form chains, and a chain is followed by jumping twice as far each time.
    """
    count = height * width
    place = np.arange(count).reshape(height, width)  # a pixel's new colour is place, its old one count + place
    inner = place[height - furthest : furthest : -1, width - furthest : furthest : -1]
    shifts = random.integers(-furthest, furthest, (*inner.shape, 2))  # right, down
    taken = inner + shifts[..., 1] * width + shifts[..., 0]
    done = taken > inner
    shows = np.arange(count, 2 * count)
    shows[inner] = np.where(done, taken, taken + count)
    while (shows < count).any():
        shows = np.concatenate([shows, np.arange(count, 2 * count)])[shows]
    return (shows - count).reshape(height, width)


def motion_blur(image: ndarray, severity: int, random: Generator) -> ndarray:
    """A movement within 45° of the horizontal.

    ImageNet-C's own came from ImageMagick, which is not needed here: both styles use this one.
    """
    radius, sigma = MOTION[severity - 1]
    return np.clip(moved(image, radius, sigma, random.uniform(-45, 45)), 0, 255).astype(np.uint8)


def zoom_blur(image: ndarray, severity: int, random: Generator) -> ndarray:
    """The mean of the image and of its enlarged middles."""
    end, step = ZOOM[severity - 1]
    clean = (image / 255.0).astype(np.float32)
    factors = np.arange(1, end, step)
    total = np.zeros_like(clean)
    for factor in factors:
        total += enlarged(clean, factor)[: image.shape[0], : image.shape[1]]
    return as_bytes((clean + total) / (len(factors) + 1))


def gaussian_blur(image: ndarray, severity: int, random: Generator) -> ndarray:
    """A Gaussian."""
    return as_bytes(smoothed(image / 255.0, GAUSSIAN[severity - 1]))
