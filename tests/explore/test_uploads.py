"""A zoo of files: what is an image is decoded, whatever its kind; everything else is refused in words."""

import contextlib
import io
import struct
import tempfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from labelflow.explore import uploads
from labelflow.explore.uploads import Shelf, decode, square

RED = (200, 30, 40)


def saved(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def plain(mode: str = "RGB", size: tuple[int, int] = (40, 40), colour: object = RED) -> Image.Image:
    return Image.new(mode, size, colour)  # type: ignore[arg-type]


def png_header(width: int, height: int) -> bytes:
    """A PNG that says how large it is, and holds nothing."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")]
    chunks = [
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.parametrize(
    "file",
    [
        saved(plain(), "JPEG", quality=95),
        saved(plain(), "PNG"),
        saved(plain(), "WEBP", lossless=True),
        saved(plain(), "BMP"),
        saved(plain("RGBA", colour=(*RED, 255)), "PNG"),
        saved(plain().quantize(4), "PNG"),
        saved(plain().convert("CMYK"), "JPEG", quality=95),
        saved(plain(), "WEBP", save_all=True, append_images=[plain(colour="blue")], lossless=True),
        saved(plain(), "PNG", save_all=True, append_images=[plain(colour="blue")]),
    ],
    ids=["jpeg", "png", "webp", "bmp", "rgba", "palette", "cmyk", "animated webp", "animated png"],
)
def test_images_of_every_kind_show_their_first_frame_in_rgb(file: bytes) -> None:
    image = decode(file)
    assert (image.mode, image.size) == ("RGB", (40, 40))
    assert np.abs(np.asarray(image)[20, 20].astype(int) - RED).max() < 12


def test_sixteen_bits_are_scaled_and_transparency_is_white() -> None:
    grey = Image.fromarray(np.full((20, 20), 0x8000, np.uint16))
    assert np.asarray(decode(saved(grey)))[0, 0].tolist() == [128] * 3
    clear = plain("RGBA", colour=(*RED, 0))
    assert np.asarray(decode(saved(clear)))[0, 0].tolist() == [255] * 3


def test_images_are_turned_as_their_exif_data_says() -> None:
    image = plain(size=(40, 40), colour="white")
    image.paste("black", (0, 0, 40, 20))  # the upper half
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise by a quarter
    turned = np.asarray(decode(saved(image, "JPEG", exif=exif)))
    assert turned[20, 5, 0] > 200 > 50 > turned[20, 35, 0]


def test_large_images_become_small_squares_of_their_centre() -> None:
    image = plain(size=(3000, 1000), colour="white")
    image.paste("black", (1000, 0, 2000, 1000))
    kept = decode(saved(image, "JPEG"))
    assert kept.size == (512, 512)
    assert np.asarray(kept).max() < 30
    assert square(plain(size=(30, 20))).size == (20, 20)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (b"", "not a JPEG, PNG, WebP or BMP"),
        (b"hello", "not a JPEG, PNG, WebP or BMP"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not a JPEG, PNG, WebP or BMP"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 50, "damaged"),
        (b"\xff\xd8\xff\xe0" + b"\0" * 50, "damaged"),
        (saved(plain(), "GIF"), "not a JPEG, PNG, WebP or BMP"),
        (saved(plain(), "TIFF"), "not a JPEG, PNG, WebP or BMP"),
        (saved(plain(), "PPM"), "not a JPEG, PNG, WebP or BMP"),
        (saved(plain(), "PDF"), "not a JPEG, PNG, WebP or BMP"),
        (saved(Image.effect_noise((64, 64), 90), "JPEG")[:700], "damaged"),
        (saved(Image.effect_noise((64, 64), 90), "PNG")[:700], "damaged"),
        (saved(Image.effect_noise((64, 64), 90), "WEBP")[:700], "damaged"),
        (saved(plain(), "BMP")[:700], "damaged"),
        (png_header(40, 40), "damaged"),
        (png_header(6400, 6400), "more than 40 million pixels"),
        (png_header(11_000, 11_000), "more than 40 million pixels"),  # PIL would warn
        (png_header(60_000, 60_000), "more than 40 million pixels"),  # PIL would refuse
        (saved(plain(size=(1, 1))), "1×1 pixels; both sides need at least 8"),
        (saved(plain(size=(7, 400))), "7×400 pixels; both sides need at least 8"),
        (saved(plain(size=(800, 10))), "800×10 pixels; one side is more than 16 times the other"),
        (b"\0" * 10_000_001, "larger than 10 MB"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else f"{len(value)} bytes",
)
def test_bad_files_are_refused_in_words(file: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        decode(file)


def test_pixels_are_counted_before_anything_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*unused: object) -> None:
        raise AssertionError("it was decoded")

    monkeypatch.setattr("labelflow.explore.uploads.to_rgb", load)
    with pytest.raises(ValueError, match="40 million"):
        decode(png_header(6400, 6400))


def test_random_damage_raises_nothing_else() -> None:
    rng = np.random.default_rng(0)
    for kind in ("JPEG", "PNG", "WEBP", "BMP"):
        whole = saved(Image.effect_noise((24, 24), 60), kind)
        for _ in range(40):
            file = bytearray(whole)
            for place in rng.integers(0, len(file), 6):
                file[place] = rng.integers(256)
            with contextlib.suppress(ValueError):
                assert decode(bytes(file)).mode == "RGB"


def test_the_latest_uploads_are_kept_and_examples_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "UPLOADS", 2)
    example, *others = (plain(colour=(number, 0, 0)) for number in range(4))
    shelf = Shelf([("one", example)])
    first, second = shelf.add(others[0]), shelf.add(others[1])
    assert shelf.get(first) is others[0]  # used now, so that the second is the oldest
    third = shelf.add(others[2])
    assert (shelf.get(first), shelf.get(third)) == (others[0], others[2])
    with pytest.raises(ValueError, match="upload it again"):
        shelf.get(second)
    assert shelf.get("example-0") is example
    assert len({first, second, third}) == 3
    assert min(map(len, (first, second, third))) >= 16  # nobody guesses them


def test_nothing_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where tempfile, and so starlette, would write
    Shelf([]).add(decode(saved(plain())))
    assert not list(tmp_path.rglob("*"))
