"""The corruptions of ImageNet-C, for images of any size: 15, and four extra ones.

Written from the papers. `style="imagecorruptions"` makes what the package of that name does, and
`style="imagenet_c"` what is in the published files for 224 pixels, except for motion blur, which came from ImageMagick.
Another corruption is one function, (image, severity, random) -> image, and one line here.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from numpy import ndarray
from numpy.random import Generator
from PIL import Image

from labelflow.robustness.corruptions import blur, digital, noise, weather
from labelflow.robustness.corruptions.ice import read_texture, textures_in
from labelflow.robustness.corruptions.parts import check_installed
from labelflow.spec import known

__all__ = [
    "CORRUPTIONS",
    "EXTRA",
    "GROUPS",
    "IMAGENET_C",
    "SMALLEST",
    "STYLES",
    "check_installed",
    "corrupt",
    "read_texture",
    "textures_in",
]

SMALLEST = 32  # pixels
CORRUPTIONS: dict[str, Callable[..., ndarray]] = {
    "gaussian_noise": noise.gaussian_noise,
    "shot_noise": noise.shot_noise,
    "impulse_noise": noise.impulse_noise,
    "defocus_blur": blur.defocus_blur,
    "glass_blur": blur.glass_blur,
    "motion_blur": blur.motion_blur,
    "zoom_blur": blur.zoom_blur,
    "snow": weather.snow,
    "frost": weather.frost,
    "fog": weather.fog,
    "brightness": weather.brightness,
    "contrast": digital.contrast,
    "elastic_transform": digital.elastic_transform,
    "pixelate": digital.pixelate,
    "jpeg_compression": digital.jpeg_compression,
}
EXTRA: dict[str, Callable[..., ndarray]] = {
    "speckle_noise": noise.speckle_noise,
    "gaussian_blur": blur.gaussian_blur,
    "spatter": weather.spatter,
    "saturate": digital.saturate,
}
GROUPS = {
    "noise": tuple(CORRUPTIONS)[:3],
    "blur": tuple(CORRUPTIONS)[3:7],
    "weather": tuple(CORRUPTIONS)[7:11],
    "digital": tuple(CORRUPTIONS)[11:],
    "extra": tuple(EXTRA),
}
IMAGENET_C: dict[
    str, Callable[..., ndarray]
] = {  # where ImageNet-C differs; zoom blur's crop does not, as it has at most a pixel to drop
    "snow": partial(weather.snow, centred=True),
    "frost": partial(weather.frost, rescaled=1.0),
    "elastic_transform": digital.elastic_transform_imagenet_c,
    "pixelate": partial(digital.pixelate, up=Image.Resampling.BOX),
}
STYLES: dict[str, dict[str, Callable[..., ndarray]]] = {
    "imagecorruptions": {**CORRUPTIONS, **EXTRA},
    "imagenet_c": {**CORRUPTIONS, **EXTRA, **IMAGENET_C},
}
SAVED = 85  # the quality of ImageNet-C's own JPEG files


def corrupt(
    image: ndarray,
    name: str,
    severity: int,
    random: Generator,
    style: str = "imagecorruptions",
    frost: str | Path | None = None,
) -> ndarray:
    """An image (H, W, 3) of uint8 with one corruption, of severity 1 to 5; `frost` is a folder of published textures.

    >>> grey = np.full((32, 48, 3), 128, np.uint8)
    >>> noisy = corrupt(grey, "impulse_noise", 3, np.random.default_rng(0))
    >>> np.unique(noisy).tolist(), round(float((noisy != grey).mean()), 2)
    ([0, 128, 255], 0.09)
    """
    functions = STYLES[known(style, STYLES, "style")]
    function = functions[known(name, functions, "corruption")]
    if severity not in range(1, 6):
        raise ValueError(f"severity must be 1, 2, 3, 4 or 5, not {severity}")
    if not isinstance(image, ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        given = f"{image.dtype} {image.shape}" if isinstance(image, ndarray) else type(image).__name__
        raise ValueError(f"an image must be an array of uint8, (height, width, 3), not {given}")
    if min(image.shape[:2]) < SMALLEST:
        raise ValueError(f"corruptions need at least {SMALLEST} pixels, not {image.shape[1]}×{image.shape[0]}")
    corrupted = function(image, int(severity), random, **({"folder": frost} if name == "frost" else {}))
    return digital.jpeg(corrupted, SAVED) if style == "imagenet_c" else corrupted
