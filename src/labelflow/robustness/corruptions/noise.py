"""Noise: Gaussian, shot, impulse; and speckle, one of the extra ones.

The parameters are those of Hendrycks and Dietterich, Benchmarking Neural Network Robustness (2019), severity 1 to 5.
"""

import numpy as np
from numpy import ndarray
from numpy.random import Generator

from labelflow.robustness.corruptions.parts import as_bytes

GAUSSIAN = (0.08, 0.12, 0.18, 0.26, 0.38)  # σ
SHOT = (60, 25, 12, 5, 3)  # photons of a white pixel
IMPULSE = (0.03, 0.06, 0.09, 0.17, 0.27)  # the part of all values that is lost
SPECKLE = (0.15, 0.2, 0.35, 0.45, 0.6)  # σ


def gaussian_noise(image: ndarray, severity: int, random: Generator) -> ndarray:
    """x + N(0, σ)."""
    return as_bytes(image / 255.0 + random.normal(size=image.shape, scale=GAUSSIAN[severity - 1]))


def shot_noise(image: ndarray, severity: int, random: Generator) -> ndarray:
    """Poisson(x·photons) / photons."""
    photons = SHOT[severity - 1]
    return as_bytes(random.poisson(image / 255.0 * photons) / photons)


def impulse_noise(image: ndarray, severity: int, random: Generator) -> ndarray:
    """Salt and pepper: some values become 0 or 255, each channel by itself."""
    lost = random.random(image.shape) < IMPULSE[severity - 1]
    salt = random.random(image.shape) < 0.5
    return np.where(lost, np.where(salt, 255, 0), image).astype(np.uint8)


def speckle_noise(image: ndarray, severity: int, random: Generator) -> ndarray:
    """x + x·N(0, σ)."""
    clean = image / 255.0
    return as_bytes(clean + clean * random.normal(size=image.shape, scale=SPECKLE[severity - 1]))
