"""Segments and objects drawn over their images.

Shapes: H×W pixels, N objects.
"""

import colorsys
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TypeVar

import numpy as np
import torch
from PIL import Image, ImageColor, ImageDraw, ImageFont
from torch import Tensor
from torchvision.utils import draw_bounding_boxes, draw_segmentation_masks

from labelflow.tasks.segment.metrics import VOID

WIDTH, LINE = 384, 22  # of a picture, at least, and the height of a line of text, in pixels
HEIGHT = 4096  # no picture is enlarged beyond it: a narrow one would take gigabytes, or be too high for a JPEG
FONT = ImageFont.load_default(15)
Colour = tuple[int, int, int]
Name = TypeVar("Name", bound=Hashable)
PALETTE = (  # colours that can be told apart, the commonest class first
    *("#e6194b", "#4363d8", "#3cb44b", "#ffe119", "#f58231", "#911eb4", "#42d4f4", "#f032e6", "#9a6324", "#bfef45"),
    *("#000075", "#fabed4", "#469990", "#800000", "#aaffc3", "#808000", "#dcbeff"),
)
OTHERS: Colour = (127, 127, 127)  # of classes that have none


def draw_segments(image: Image.Image, classes: Tensor, names: Sequence[str], legend: bool = True) -> Image.Image:
    """An image under the colours of its classes, (H, W), and which is which; 255 stays as it is."""
    picture, pixels = _enlarged(image)
    shown = sorted(set(classes.unique().tolist()) - {VOID})
    masks = torch.stack([_resized(classes == number, picture) for number in shown]) if shown else torch.zeros(0)
    if len(masks):
        pixels = draw_segmentation_masks(pixels, masks, alpha=0.6, colors=[colour(number) for number in shown])
    drawn = Image.fromarray(pixels.permute(1, 2, 0).numpy())
    return with_legend(drawn, [(names[number], colour(number)) for number in shown]) if legend else drawn


def as_mask(classes: Tensor, count: int) -> Image.Image:
    """(H, W) as a picture of class ids, which viewers show in the colours of the classes."""
    mask = Image.fromarray(classes.byte().numpy())
    mask.putpalette([value for number in range(count) for value in colour(number)])
    return mask


def draw_objects(image: Image.Image, found: dict[str, Tensor], names: Sequence[str]) -> Image.Image:
    """An image with its objects: boxes (N, 4), labels (N,), masks (N, H, W), and scores (N,) where there are some."""
    picture, pixels = _enlarged(image)
    labels = found["labels"].tolist()
    if not labels:
        return picture
    colours = [colour(label) for label in labels]
    for mask, own in reversed(list(zip(found["masks"], colours, strict=True))):  # the best on top
        pixels = draw_segmentation_masks(pixels, _resized(mask.bool(), picture), alpha=0.4, colors=own)
    told = [names[label] for label in labels]
    if "scores" in found:
        told = [f"{name} {100 * score:.0f} %" for name, score in zip(told, found["scores"].tolist(), strict=True)]
    across, down = picture.width / image.width, picture.height / image.height
    boxes = found["boxes"] * found["boxes"].new_tensor([across, down, across, down])
    pixels = draw_bounding_boxes(pixels, boxes, colors=colours, width=2)
    drawn = Image.fromarray(pixels.permute(1, 2, 0).numpy())
    for box, text, own in zip(boxes.tolist(), told, colours, strict=True):
        _write(drawn, text, (box[0] + 2, max(0.0, box[1])), own)
    return drawn


def beside(*pictures: Image.Image, gap: int = 8) -> Image.Image:
    """Pictures in a row."""
    width = sum(picture.width for picture in pictures) + gap * (len(pictures) - 1)
    row = Image.new("RGB", (width, max(picture.height for picture in pictures)), "white")
    left = 0
    for picture in pictures:
        row.paste(picture, (left, 0))
        left += picture.width + gap
    return row


def colour(number: int) -> Colour:
    """Of a class: hues a golden angle apart, so that neighbours differ, in two lightnesses."""
    hue, light = number * 0.618034 % 1.0, (0.5, 0.68)[number // 8 % 2]
    red, green, blue = colorsys.hls_to_rgb(hue, light, 0.75)
    return round(255 * red), round(255 * green), round(255 * blue)


def class_colours(counts: Counter[Name]) -> dict[Name, Colour]:
    """A colour for each of the commonest classes, of all images that are seen together.

    >>> class_colours(Counter(cat=3, dog=5))
    {'dog': (230, 25, 75), 'cat': (67, 99, 216)}
    """
    return {
        name: ImageColor.getcolor(own, "RGB")  # type: ignore[misc]
        for (name, _), own in zip(counts.most_common(len(PALETTE)), PALETTE, strict=False)
    }


def fitting(text: str, width: float) -> str:
    """As much of a text as fits, in pixels."""
    if FONT.getlength(text) <= width:
        return text
    while text and FONT.getlength(f"{text}…") > width:
        text = text[:-1]
    return f"{text}…"


def _enlarged(image: Image.Image) -> tuple[Image.Image, Tensor]:
    """Wide enough to write on, unless that makes it too high; and its pixels, (3, H, W) uint8."""
    image = image.convert("RGB")
    scale = min(WIDTH / image.width, HEIGHT / image.height)
    if scale > 1:
        image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
    return image, torch.from_numpy(np.array(image)).permute(2, 0, 1)


def _resized(mask: Tensor, like: Image.Image) -> Tensor:
    """(H, W) bool, at the size of a picture."""
    picture = Image.fromarray(mask.cpu().numpy()).resize(like.size, Image.Resampling.NEAREST)
    return torch.from_numpy(np.array(picture))


def _write(picture: Image.Image, text: str, place: tuple[float, float], background: Colour) -> None:
    drawing = ImageDraw.Draw(picture)
    drawing.rectangle(drawing.textbbox(place, text, FONT), background)
    drawing.text(place, text, "black" if sum(background) > 330 else "white", FONT)


def with_legend(picture: Image.Image, entries: Sequence[tuple[str, Colour]]) -> Image.Image:
    """Names beneath, as many in a line as fit."""
    places, left, line = [], 4.0, 0
    for name, _ in entries:
        width = 20 + FONT.getlength(name) + 10
        if left + width > picture.width and left > 4:
            left, line = 4.0, line + 1
        places.append((left, picture.height + 3 + line * LINE))
        left += width
    page = Image.new("RGB", (picture.width, picture.height + (line + 1) * LINE + 4), "white")
    page.paste(picture, (0, 0))
    drawing = ImageDraw.Draw(page)
    for (name, own), (x, y) in zip(entries, places, strict=True):
        drawing.rectangle((x, y + 3, x + 13, y + 16), own)
        drawing.text((x + 19, y), name, "black", FONT)
    return page
