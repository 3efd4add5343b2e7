"""Images from files, whatever their orientation and colour mode."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import ExifTags, Image, ImageOps

EXTENSIONS = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})

Decode = Callable[[Image.Image], Any]  # what to make of an image that is open, and not read yet


def read(path: Path | str) -> Image.Image:
    """The image in RGB, turned as its EXIF data says."""
    with Image.open(path) as image:
        return to_rgb(image)


def read_or_refuse(path: Path | str) -> Image.Image:
    """The same; whatever is wrong with a file is a ValueError."""
    try:
        return read(path)
    except Exception as error:  # damaged files make PIL raise all kinds of them
        raise ValueError(f"cannot read the image {path}: {error}") from None


def to_rgb(image: Image.Image) -> Image.Image:
    """Grey, palette, CMYK, 16-bit, float and transparent (on white) images in RGB, turned as their EXIF data says."""
    image.load()
    if orientation(image) != 1:
        image = ImageOps.exif_transpose(image)
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):  # PIL would clip, not scale
        image = Image.fromarray(_to_bytes(np.asarray(image)))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")  # which would copy it


def _to_bytes(grey: "np.ndarray") -> "np.ndarray":
    """Of 16 bits, or of floats from 0 to 1: by what the format can hold, so that a dark image stays dark."""
    white = 1 if grey.dtype.kind == "f" else 65535
    if not (grey.min() >= 0 and grey.max() <= white):
        raise ValueError(f"it has values from {grey.min():g} to {grey.max():g}, which should be from 0 to {white}")
    return (grey * 255.0).round().astype(np.uint8) if white == 1 else (grey // 256).astype(np.uint8)


def is_on_its_side(image: Image.Image) -> bool:
    """Whether decoding exchanges width and height. Of a TIFF, Pillow has exchanged them when it is opened."""
    return orientation(image) in (5, 6, 7, 8) and image.format != "TIFF"


def orientation(image: Image.Image) -> int:
    """EXIF's, 1 to 8. The image need not be decoded."""
    found = image.getexif().get(ExifTags.Base.Orientation, 1)
    return found if found in range(1, 9) else 1
