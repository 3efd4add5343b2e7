"""Digital: contrast, elastic transform, pixelate, JPEG; and saturate, one of the extra ones; brightness uses its parts.

The parameters are those of Hendrycks and Dietterich, Benchmarking Neural Network Robustness (2019), severity 1 to 5;
ELASTIC those of Michaelis et al., Benchmarking Robustness in Object Detection (2019).
"""

from io import BytesIO

import numpy as np
from numpy import ndarray
from numpy.random import Generator
from PIL import Image

from labelflow.robustness.corruptions.parts import as_bytes, ndimage, opencv

CONTRAST = (0.4, 0.3, 0.2, 0.1, 0.05)
ELASTIC = (12.5, 16.25, 21.25, 25.0, 30.0)  # strength: 250 × (.05 .065 .085 .1 .12)
ELASTIC_IMAGENET_C = ((2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02))
PIXELATE = (0.6, 0.5, 0.4, 0.3, 0.25)  # the side that is left
JPEG = (25, 18, 15, 10, 7)  # quality
SATURATE = ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2))  # factor, summand


def contrast(image: ndarray, severity: int, random: Generator) -> ndarray:
    """Towards the mean of each channel."""
    means = image.mean((0, 1)) / 255.0  # (3,)
    values = np.arange(256)[:, None] / 255.0
    table = as_bytes((values - means) * CONTRAST[severity - 1] + means)  # (256, 3)
    return opencv().LUT(image, table[:, None])


def elastic_transform(image: ndarray, severity: int, random: Generator) -> ndarray:
    """Pixels move a little, and neighbours together."""
    height, width = image.shape[:2]
    furthest = height * 0.005
    shifts = [random.uniform(-furthest, furthest, (height, width)) for _ in range(2)]
    return _warped(image / np.float32(255), shifts, (height * 0.01, width * 0.01), ELASTIC[severity - 1])


def elastic_transform_imagenet_c(image: ndarray, severity: int, random: Generator) -> ndarray:
    """As ImageNet-C's: an affine transform, then pixels that move together. Made for 224 pixels."""
    cv2 = opencv()
    strength, sigma, jitter = (244 * number for number in ELASTIC_IMAGENET_C[severity - 1])
    size = np.array(image.shape[:2])
    third = min(size) // 3
    corners = (size // 2 + third * np.array([[1, 1], [1, -1], [-1, -1]])).astype(np.float32)
    jittered = corners + random.uniform(-jitter, jitter, corners.shape).astype(np.float32)
    affine = cv2.getAffineTransform(corners, jittered)
    turned = cv2.warpAffine(image / np.float32(255), affine, tuple(size[::-1]), borderMode=cv2.BORDER_REFLECT_101)
    shifts = [random.uniform(-1, 1, image.shape[:2]) for _ in range(2)]
    return _warped(turned, shifts, (sigma, sigma), strength)


def _warped(image: ndarray, shifts: list[ndarray], sigmas: tuple[float, float], strength: float) -> ndarray:
    """Each pixel from where smoothed shifts point to: right, and down."""
    blur = ndimage().gaussian_filter
    right, down = ((blur(shift, sigmas, mode="reflect", truncate=3) * strength).astype(np.float32) for shift in shifts)
    rows, columns = np.indices(image.shape[:2])
    places = [rows + down, columns + right]
    channels = [ndimage().map_coordinates(image[..., c], places, order=1, mode="reflect") for c in range(3)]
    return as_bytes(np.stack(channels, -1))


def pixelate(
    image: ndarray, severity: int, random: Generator, up: Image.Resampling = Image.Resampling.NEAREST
) -> ndarray:
    """Made small, and large again."""
    height, width = image.shape[:2]
    left = PIXELATE[severity - 1]
    small = Image.fromarray(image).resize((int(width * left), int(height * left)), Image.Resampling.BOX)
    return np.array(small.resize((width, height), up))


def jpeg_compression(image: ndarray, severity: int, random: Generator) -> ndarray:
    """JPEG of low quality."""
    return jpeg(image, JPEG[severity - 1])


def jpeg(image: ndarray, quality: int) -> ndarray:
    """What is left after saving as JPEG."""
    file = BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality)
    return np.array(Image.open(file))


def saturate(image: ndarray, severity: int, random: Generator) -> ndarray:
    """Saturation S·factor + summand; grey has the hue of red."""
    factor, summand = SATURATE[severity - 1]
    hue, saturation, value = to_hsv(image / 255.0)
    return as_bytes(to_rgb(hue, np.clip(saturation * factor + summand, 0, 1), value))


def to_hsv(image: ndarray) -> tuple[ndarray, ndarray, ndarray]:
    """Hue, in sixths of the circle, saturation and value, each (H, W), of RGB in [0, 1] (H, W, 3)."""
    red, green, blue = (np.ascontiguousarray(image[..., c]) for c in range(3))
    value = np.maximum(np.maximum(red, green), blue)
    spread = value - np.minimum(np.minimum(red, green), blue)
    one = np.where(spread > 0, spread, 1)  # grey: hue 0
    hue = np.where(value == red, (green - blue) / one, 2 + (blue - red) / one)
    hue = np.where((value == blue) & (spread > 0), 4 + (red - green) / one, hue) / 6 % 1 * 6
    return hue, spread / np.where(value > 0, value, 1), value


def to_rgb(hue: ndarray, saturation: ndarray, value: ndarray) -> ndarray:
    """RGB (H, W, 3) in [0, 1]; the inverse of `to_hsv`.

    >>> bool(np.allclose(to_rgb(*to_hsv(np.array([[[0.1, 0.7, 0.4]]]))), [0.1, 0.7, 0.4]))
    True
    """
    sixth = np.floor(hue)
    into = hue - sixth
    least = value * (1 - saturation)
    falling = value * (1 - into * saturation)
    rising = value * (1 - (1 - into) * saturation)
    sixth = sixth.astype(int) % 6
    red = np.choose(sixth, [value, falling, least, least, rising, value])
    green = np.choose(sixth, [rising, value, value, falling, least, least])
    blue = np.choose(sixth, [least, least, rising, value, value, falling])
    return np.stack([red, green, blue], -1)
