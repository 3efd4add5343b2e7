"""Weather: snow, frost, fog, brightness; and spatter, one of the extra ones.

The parameters are those of Hendrycks and Dietterich, Benchmarking Neural Network Robustness (2019), severity 1 to 5.
"""

from pathlib import Path

import numpy as np
from numpy import ndarray
from numpy.random import Generator

from labelflow.robustness.corruptions.digital import to_hsv, to_rgb
from labelflow.robustness.corruptions.ice import texture
from labelflow.robustness.corruptions.parts import as_bytes, enlarged, middle, moved, opencv, smoothed

SNOW = (  # mean, σ, enlarged by, least, radius and σ of the movement, part of the image that is kept
    (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
    (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
    (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
    (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
    (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
)
FROST = ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))  # weights of the image and of the frost
FOG = ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4))  # thickness, decay of its detail
BRIGHTNESS = (0.1, 0.2, 0.3, 0.4, 0.5)  # added to V of HSV
SPATTER = (  # mean, σ, blur, least, strength of water or blur of mud
    (0.65, 0.3, 4, 0.69, 0.6),
    (0.65, 0.3, 3, 0.68, 0.6),
    (0.65, 0.3, 2, 0.68, 0.5),
    (0.65, 0.3, 1, 0.65, 1.5),
    (0.67, 0.4, 1, 0.65, 1.5),
)
WATER, MUD = (175, 238, 238), (63, 42, 20)
RELIEF = ((-2, -1, 0), (-1, 1, 1), (0, 1, 2))  # light on the edges of drops


def snow(image: ndarray, severity: int, random: Generator, centred: bool = False) -> ndarray:
    """A whiter image, and flakes that fall from both sides."""
    mean, sigma, factor, least, radius, movement, kept = SNOW[severity - 1]
    height, width = image.shape[:2]
    flakes = enlarged(random.normal(size=(height, width), loc=mean, scale=sigma), factor)
    flakes = middle(flakes, height, width) if centred else flakes
    flakes = np.where(flakes < least, 0, np.clip(flakes, 0, 1))
    flakes = moved(flakes, int(radius), movement, random.uniform(-135, -45))[:height, :width]
    flakes = np.round(flakes * 255) / 255
    clean = image / np.float32(255)
    cv2 = opencv()
    grey = cv2.cvtColor(clean, cv2.COLOR_RGB2GRAY)[..., None]
    whiter = kept * clean + (1 - kept) * np.maximum(clean, grey * 1.5 + 0.5)
    return as_bytes(whiter + (flakes + flakes[::-1, ::-1])[..., None])


def frost(
    image: ndarray, severity: int, random: Generator, folder: str | Path | None = None, rescaled: float = 1.1
) -> ndarray:
    """A part of one of five textures of ice over the image; published ones from a folder, or some made by code."""
    kept, added = FROST[severity - 1]
    height, width = image.shape[:2]
    ice = texture(int(random.integers(0, 5)), folder, height, width, rescaled)
    top = random.integers(0, ice.shape[0] - height)
    left = random.integers(0, ice.shape[1] - width)
    part = ice[top : top + height, left : left + width]
    return np.clip(kept * image + added * part, 0, 255).astype(np.uint8)


def fog(image: ndarray, severity: int, random: Generator) -> ndarray:
    """A cloud added, and the whole scaled to the image's brightest value."""
    thickness, decay = FOG[severity - 1]
    height, width = image.shape[:2]
    side = 1 << (max(height, width) - 1).bit_length()
    cloud = plasma(side, decay, random)[:height, :width, None]
    clean = image / 255.0
    brightest = clean.max()
    return as_bytes((clean + thickness * cloud) * brightest / (brightest + thickness))


def plasma(side: int, decay: float, random: Generator) -> ndarray:
    """A cloud in [0, 1] by diamonds and squares, (side, side), its edges joined; the side is a power of 2."""
    cloud = np.zeros((side, side))
    step, wobble = side, 100.0

    def middle(four: ndarray) -> ndarray:
        return four / 4 + wobble * random.uniform(-wobble, wobble, four.shape)

    while step >= 2:
        half = step // 2
        corners = cloud[::step, ::step]
        pairs = corners + np.roll(corners, -1, 0)
        cloud[half::step, half::step] = middle(pairs + np.roll(pairs, -1, 1))
        centres = cloud[half::step, half::step]
        above_and_below = centres + np.roll(centres, 1, 0)
        cloud[::step, half::step] = middle(above_and_below + (corners + np.roll(corners, -1, 1)))
        left_and_right = centres + np.roll(centres, 1, 1)
        cloud[half::step, ::step] = middle(left_and_right + (corners + np.roll(corners, -1, 0)))
        step, wobble = half, wobble / decay
    cloud -= cloud.min()
    return cloud / cloud.max()


def brightness(image: ndarray, severity: int, random: Generator) -> ndarray:
    """V + a constant, in HSV."""
    hue, saturation, value = to_hsv(image / 255.0)
    return as_bytes(to_rgb(hue, saturation, np.clip(value + BRIGHTNESS[severity - 1], 0, 1)))


def spatter(image: ndarray, severity: int, random: Generator) -> ndarray:
    """Drops of water, severity 1 to 3, or mud."""
    mean, sigma, blur, least, last = SPATTER[severity - 1]
    liquid = smoothed(random.normal(size=image.shape[:2], loc=mean, scale=sigma), blur)
    clean = image / np.float32(255)
    if severity <= 3:
        return as_bytes(clean + (last * drops(np.where(liquid < least, 0, liquid)))[..., None] * _colour(WATER))
    mud = smoothed((liquid > least).astype(np.float32), last)
    mud = np.where(mud < 0.8, 0, mud)[..., None]
    return as_bytes(clean * (1 - mud) + _colour(MUD) * mud)


def drops(liquid: ndarray) -> ndarray:
    """How bright drops are, up to 1: those of a liquid (H, W) whose thickness is 0 where there is none."""
    cv2 = opencv()
    thickness = (liquid * 255).astype(np.uint8)
    from_edge = cv2.distanceTransform(255 - cv2.Canny(thickness, 50, 150), cv2.DIST_L2, 5)
    from_edge = cv2.equalizeHist(cv2.blur(np.minimum(from_edge, 20), (3, 3)).astype(np.uint8))
    lit = cv2.blur(cv2.filter2D(from_edge, cv2.CV_8U, np.array(RELIEF)), (3, 3)).astype(np.float32)
    bright = thickness * lit
    return bright / max(bright.max(), 1)


def _colour(rgb: tuple[int, int, int]) -> ndarray:
    return np.array(rgb, np.float32) / 255
