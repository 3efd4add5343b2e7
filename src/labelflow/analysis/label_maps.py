"""Dense labels drawn over their images.

Shapes: h×w cells of a map.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy import ndarray
from PIL import Image, ImageDraw

from labelflow.analysis.drawn import FONT, LINE, OTHERS, Colour, beside, class_colours, fitting, with_legend
from labelflow.data import Source
from labelflow.data.geometry import Geometry
from labelflow.data.imagenet import title
from labelflow.data.several import class_ids
from labelflow.labels import Store, label_view

SIDE, GAP, COLUMNS = 240, 12, 2  # of a picture, and what lies between, in pixels; tiles in a row


@dataclass(frozen=True, eq=False)
class LabelMap:
    """An image and its dense label."""

    image: Image.Image
    name: str  # of its class, or of its classes
    classes: ndarray  # (h, w): the likeliest class of each cell
    sureness: ndarray  # (h, w): its probability


def label_picture(store: Store, source: Source, count: int = 6) -> Image.Image:
    """A sheet of some images beside their label maps: each cell in the colour of its likeliest class, the stronger the
    surer. A class has one colour on the whole sheet. The images are taken at even distances from the source."""
    if count < 1:
        raise ValueError(f"there must be an image to draw, not {count}")
    chosen = np.linspace(0, len(source) - 1, min(count, len(source))).round().astype(int).tolist()
    maps = [read_map(store, source, index) for index in dict.fromkeys(chosen)]
    names = list(map(title, store.manifest.classes))
    counts = Counter(number for one in maps for number in one.classes.flatten().tolist())
    colours = class_colours(counts)
    sheet = _grid([_tile(one, colours, names) for one in maps])
    entries = [(names[number], own) for number, own in colours.items()]
    return with_legend(sheet, [*entries, ("other classes", OTHERS)] if len(counts) > len(colours) else entries)


def read_map(store: Store, source: Source, index: int) -> LabelMap:
    image, label = source.load(index)
    manifest = store.manifest
    labels = label_view(
        store[source.key(index)],
        Geometry(image.size),
        manifest.grid,
        len(manifest.classes),
        manifest.seen,
        scores=manifest.scores,
    )
    above, rest = labels.above[0].numpy(), labels.rest[0].numpy()
    likeliest = labels.image.classes[0].numpy()[above.argmax(1)]
    sureness = (above.max(1) + rest).clip(0, 1)
    name = ", ".join(title(manifest.classes[number]) for number in class_ids(label)) or "no label"
    return LabelMap(image, name, likeliest.reshape(manifest.grid), sureness.reshape(manifest.grid))


def _tile(one: LabelMap, colours: Mapping[int, Colour], names: Sequence[str]) -> Image.Image:
    """The image over its class, and its map over the commonest classes."""
    painted = np.array([colours.get(number, OTHERS) for number in one.classes.flatten().tolist()], np.uint8)
    overlay = Image.fromarray(painted.reshape(*one.classes.shape, 3)).resize((SIDE, SIDE), Image.Resampling.NEAREST)
    strength = Image.fromarray((40 + 175 * one.sureness).astype(np.uint8))
    image = one.image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    mapped = Image.composite(overlay, image, strength.resize((SIDE, SIDE), Image.Resampling.NEAREST))
    tile = Image.new("RGB", (2 * SIDE + GAP, SIDE + 2 * LINE), "white")
    tile.paste(beside(image, mapped, gap=GAP), (0, 0))
    drawing = ImageDraw.Draw(tile)
    drawing.text((0, SIDE + 2), fitting(one.name, SIDE), "black", FONT)
    for line, (number, cells) in enumerate(Counter(one.classes.flatten().tolist()).most_common(2)):
        part = f" {cells / one.classes.size:.0%}"
        text = fitting(names[number], SIDE - FONT.getlength(part)) + part
        drawing.text((SIDE + GAP, SIDE + 2 + line * LINE), text, "black", FONT)
    return tile


def _grid(tiles: Sequence[Image.Image]) -> Image.Image:
    columns = min(COLUMNS, len(tiles))
    rows = -(-len(tiles) // columns)
    width, height = tiles[0].size
    page = Image.new("RGB", (columns * (width + GAP) + GAP, rows * (height + GAP) + GAP), "white")
    for number, tile in enumerate(tiles):
        row, column = divmod(number, columns)
        page.paste(tile, (GAP + column * (width + GAP), GAP + row * (height + GAP)))
    return page
