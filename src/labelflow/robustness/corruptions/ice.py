"""Textures of ice for frost: photographs from a folder, or feathers drawn by code."""

from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy import ndarray
from numpy.random import Generator, default_rng

from labelflow.robustness.corruptions.parts import as_bytes, opencv, smoothed

FILES = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")  # a sixth was published, but never used
MADE = (420, 560)  # height and width of a texture made by code, about those of the published ones
LEVELS = (0.5, 0.78, 0.72, 0.58, 0.5)  # mean grey, about theirs, too
TINTS = ((0.75, 1.05, 1.2), (0.97, 1, 1.03), (0.93, 1, 1.07), (0.9, 1, 1.1), (0.85, 1, 1.15))


def textures_in(folder: str | Path) -> list[str]:
    """The published textures; a ValueError if one is missing."""
    files = [Path(folder) / name for name in FILES]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ValueError(f"a folder of frost textures needs {', '.join(FILES)}; {folder} lacks {', '.join(missing)}")
    return list(map(str, files))


def texture(number: int, folder: str | Path | None, height: int, width: int, rescaled: float) -> ndarray:
    """Texture 0 to 4 as RGB, larger than an image of this size: (H', W', 3)."""
    file = "" if folder is None else str(Path(folder) / FILES[number])
    ice = _texture(number, file, 1.0)
    fit = max(height / ice.shape[0], width / ice.shape[1])
    if fit >= 1:
        rescaled = 1.1  # or there would be nothing to choose from
    return _texture(number, file, max(fit, 1) * rescaled)


@lru_cache(maxsize=10)
def _texture(number: int, file: str, scale: float) -> ndarray:
    if scale == 1:
        return read_texture(file) if file else made(number)
    cv2 = opencv()
    ice = _texture(number, file, 1.0)
    size = [int(np.ceil(side * scale)) for side in (ice.shape[1], ice.shape[0])]
    return cv2.resize(ice, size, interpolation=cv2.INTER_CUBIC)


def read_texture(file: str) -> ndarray:
    """A photograph, RGB."""
    pixels = opencv().imread(file) if Path(file).is_file() else None
    if pixels is None:
        raise ValueError(f"cannot read {file}; a folder of frost textures needs {', '.join(FILES)}")
    return np.ascontiguousarray(pixels[..., ::-1])


def made(number: int) -> ndarray:
    """Needles of ice on a misty pane: (420, 560, 3), the same for the same number."""
    cv2, random = opencv(), default_rng(number)
    needles = np.full(MADE, 110, np.uint8)
    for _ in range(900):
        points, light = feather(random), float(random.uniform(60, 255))
        cv2.polylines(needles, (points * 16).astype(np.int32), False, light, 1, cv2.LINE_AA, 4)  # sixteenths of a pixel
    lines = smoothed(needles / 255.0, 0.6)
    relief = lines - np.roll(lines, (2, 2), (0, 1))  # light from above on the left
    mist = cv2.resize(random.normal(size=(6, 8)), MADE[::-1], interpolation=cv2.INTER_CUBIC)
    grey = LEVELS[number] + 0.5 * (lines - lines.mean()) + 0.25 * relief + 0.08 * (mist - mist.mean())
    return as_bytes(grey[..., None] * TINTS[number])


def feather(random: Generator) -> ndarray:
    """A shaft, and needles that leave it on both sides, shorter towards its tip: lines (N, 2 ends, x and y)."""
    length, way = random.uniform(20, 90), random.uniform(0, 2 * np.pi)
    along = random.uniform(0, 1, int(length / 2))  # where on the shaft, 0 its foot
    starts = random.uniform((0, 0), MADE[::-1]) + length * along[:, None] * _towards(way)
    sides = np.where(random.random(len(along)) < 0.5, -1, 1) * random.normal(0.6, 0.2, len(along))  # radians
    reach = length * (1 - along) * random.uniform(0.2, 0.7, len(along))
    return np.stack([starts, starts + reach[:, None] * _towards(way + sides)], 1)


def _towards(angle: ndarray | float) -> ndarray:
    return np.stack([np.cos(angle), np.sin(angle)], -1)
