"""Images from strangers: checked, decoded once, made small, and kept in memory only."""

import io
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

from PIL import Image

from labelflow.data.images import to_rgb

FORMATS = ("JPEG", "PNG", "WEBP", "BMP")  # recognised by content, not by name
BYTES = 10_000_000
PIXELS = 40_000_000
SMALLEST = 8  # of both sides, in pixels
LONGEST = 16  # how many times as long as the other a side may be
SIDE = 512  # of the squares that are kept, in pixels
UPLOADS = 32  # how many are kept


def decode(file: bytes) -> Image.Image:
    """The centre square of an image in RGB. Whatever is wrong with the file is a ValueError in plain words."""
    if len(file) > BYTES:
        raise ValueError(f"the file is larger than {BYTES // 1_000_000} MB; choose a smaller one")
    try:
        with Image.open(io.BytesIO(file), formats=FORMATS) as image:  # reads the header only
            _check_size(*image.size)
            return square(to_rgb(image))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise ValueError(_too_many_pixels()) from None
    except Image.UnidentifiedImageError:
        raise ValueError("the file is not a JPEG, PNG, WebP or BMP image, or its header is damaged") from None
    except _Refused as refused:
        raise ValueError(str(refused)) from None
    except Exception:  # damaged files make PIL raise all kinds of them
        raise ValueError("the image is damaged or truncated and cannot be decoded") from None


def square(image: Image.Image) -> Image.Image:
    """The centre of an image, which is all that models see, at most SIDE pixels wide.

    >>> square(Image.new("RGB", (2000, 1000))).size
    (512, 512)
    """
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    centre = image.crop((left, top, left + side, top + side))
    return centre.resize((SIDE, SIDE), Image.Resampling.LANCZOS, reducing_gap=3) if side > SIDE else centre


class Shelf:
    """Images by their ids: examples, which stay, and the latest uploads."""

    def __init__(self, examples: Sequence[tuple[str, Image.Image]]) -> None:
        self.examples = {f"example-{number}": image for number, (_, image) in enumerate(examples)}
        self.names = {f"example-{number}": name for number, (name, _) in enumerate(examples)}
        self.uploads: OrderedDict[str, Image.Image] = OrderedDict()
        self.lock = Lock()

    def add(self, image: Image.Image) -> str:
        """Keep an upload, and forget the one that was used longest ago where there are too many."""
        key = secrets.token_urlsafe(12)
        with self.lock:
            self.uploads[key] = image
            if len(self.uploads) > UPLOADS:
                self.uploads.popitem(last=False)
        return key

    def get(self, key: str) -> Image.Image:
        if key in self.examples:
            return self.examples[key]
        with self.lock:
            if key not in self.uploads:
                raise ValueError("the server no longer has this image; upload it again")
            self.uploads.move_to_end(key)
            return self.uploads[key]


class _Refused(Exception):
    """An image that could be decoded, but is not."""


def _check_size(width: int, height: int) -> None:
    if width * height > PIXELS:
        raise _Refused(_too_many_pixels())
    if min(width, height) < SMALLEST:
        raise _Refused(f"the image has {width}×{height} pixels; both sides need at least {SMALLEST}")
    if max(width, height) > LONGEST * min(width, height):
        raise _Refused(f"the image has {width}×{height} pixels; one side is more than {LONGEST} times the other")


def _too_many_pixels() -> str:
    return f"the image has more than {PIXELS // 1_000_000} million pixels; choose a smaller one"
