"""What several corruptions share. Images are H×W×3."""

from importlib import import_module
from typing import Any

import numpy as np
from numpy import ndarray


def opencv() -> Any:
    """The module cv2, imported when it's needed."""
    return _needed("cv2")


def ndimage() -> Any:
    """The module scipy.ndimage, imported when it's needed."""
    return _needed("scipy.ndimage")


def _needed(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        message = "corruptions need opencv-python-headless and scipy: pip install opencv-python-headless scipy"
        raise ValueError(message) from error


def check_installed() -> None:
    """A ValueError if a module is missing that some corruption needs."""
    opencv()
    ndimage()


def as_bytes(image: ndarray) -> ndarray:
    """Values in [0, 1] to 0..255: clipped, then truncated, as published.

    >>> as_bytes(np.array([-1.0, 0.5, 2.0])).tolist()
    [0, 127, 255]
    """
    return (np.clip(image, 0, 1) * 255).astype(np.uint8)


def smoothed(image: ndarray, sigma: float) -> ndarray:
    """A Gaussian over height and width, of 4σ, edges replicated."""
    sigmas = (sigma, sigma) + (0,) * (image.ndim - 2)
    return ndimage().gaussian_filter(image, sigmas, mode="nearest", truncate=4.0)


def enlarged(image: ndarray, factor: float) -> ndarray:
    """The middle of an image, enlarged linearly to its size, or a few pixels more: (H, W, ...) -> (H', W', ...)."""
    for axis in (0, 1):
        image = np.moveaxis(_enlarged(np.moveaxis(image, axis, 0), factor), 0, axis)
    return image


def _enlarged(image: ndarray, factor: float) -> ndarray:
    side = len(image)
    part = int(np.ceil(side / factor))
    places = np.linspace(0, part - 1, round(part * factor))  # corners fall on corners
    before = np.minimum(places.astype(int), part - 2)
    share = (places - before).astype(image.dtype).reshape(-1, *[1] * (image.ndim - 1))
    first = before + (side - part) // 2
    return image[first] * (1 - share) + image[first + 1] * share


def middle(image: ndarray, height: int, width: int) -> ndarray:
    """The middle of this size: (H', W', ...) -> (H, W, ...)."""
    top, left = (image.shape[0] - height) // 2, (image.shape[1] - width) // 2
    return image[top : top + height, left : left + width]


def moved(image: ndarray, radius: int, sigma: float, angle: float) -> ndarray:
    """Motion blur: the mean of 2·radius + 1 shifts along a line, weighted by one side of a Gaussian, edges replicated.

    Shifts that leave the image altogether are left out, and their weight is lost. Angles are in degrees. Values keep
    their range, in float64.
    """
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2)) / (np.sqrt(2 * np.pi) * sigma)
    weights /= weights.sum()
    down, right = (np.ceil(steps * way - 0.5).astype(int) for way in _direction(angle))
    inside = (abs(down) < image.shape[0]) & (abs(right) < image.shape[1])
    above, left = max(-down.min(), 0), max(-right.min(), 0)
    edges = ((above, max(down.max(), 0)), (left, max(right.max(), 0))) + ((0, 0),) * (image.ndim - 2)
    padded = np.pad(image, edges, mode="edge")
    blurred = np.zeros(image.shape)
    for weight, top, side in zip(weights[inside], (down + above)[inside], (right + left)[inside], strict=True):
        blurred += weight * padded[top : top + image.shape[0], side : side + image.shape[1]]
    return blurred


def _direction(angle: float) -> tuple[float, float]:
    return float(np.sin(np.deg2rad(angle))), float(np.cos(np.deg2rad(angle)))
