"""Dense labels drawn over their images.

Shapes: h×w cells of a map, k classes of a cell.
"""

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from labelflow.classifier import title
from labelflow.data import Source
from labelflow.data.geometry import Geometry
from labelflow.labels import Store, label_view

SIDE, LINE, GAP = 224, 16, 12  # of a picture, a line of text, and what lies between, in pixels
COLOURS = [(214, 39, 40), (31, 119, 180), (44, 160, 44), (255, 177, 14)]  # of an image's commonest classes
OTHERS = (127, 127, 127)


def label_picture(store: Store, source: Source, count: int = 6) -> Image.Image:
    """A picture of some images beside their label maps: each cell in the colour of its likeliest class, the stronger
    the surer. They are taken at even distances from the source."""
    if count < 1:
        raise ValueError(f"there must be an image to draw, not {count}")
    chosen = np.linspace(0, len(source) - 1, min(count, len(source))).round().astype(int).tolist()
    tiles = [_tile(store, source, index) for index in dict.fromkeys(chosen)]
    columns = min(2, len(tiles))
    rows = -(-len(tiles) // columns)
    width, height = tiles[0].size
    page = Image.new("RGB", (columns * (width + GAP) + GAP, rows * (height + GAP) + GAP), "white")
    for number, tile in enumerate(tiles):
        row, column = divmod(number, columns)
        page.paste(tile, (GAP + column * (width + GAP), GAP + row * (height + GAP)))
    return page


def _tile(store: Store, source: Source, index: int) -> Image.Image:
    image, label = source.load(index)
    classes = store.manifest.classes
    cells = store.manifest.grid
    labels = label_view(store[source.key(index)], Geometry(image.size), cells, len(classes), store.manifest.seen)
    above = np.zeros((cells[0] * cells[1], len(labels.image.classes)), np.float32)
    np.put_along_axis(above, labels.places.numpy().astype(int), labels.above.numpy(), 1)
    likeliest, sureness = above.argmax(1), above.max(1) + labels.rest.numpy()
    common = np.argsort(-np.bincount(likeliest, minlength=above.shape[1]), kind="stable")[: len(COLOURS)]

    colours = np.full((above.shape[1], 3), OTHERS, np.uint8)
    colours[common] = COLOURS[: len(common)]
    overlay = Image.fromarray(colours[likeliest].reshape(*cells, 3)).resize((SIDE, SIDE), Image.Resampling.NEAREST)
    strength = Image.fromarray((40 + 175 * sureness.clip(0, 1)).reshape(cells).astype(np.uint8))
    picture = image.resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    mapped = Image.composite(overlay, picture, strength.resize((SIDE, SIDE), Image.Resampling.NEAREST))

    tile = Image.new("RGB", (2 * SIDE + GAP, SIDE + (1 + len(COLOURS)) * LINE), "white")
    tile.paste(picture, (0, 0))
    tile.paste(mapped, (SIDE + GAP, 0))
    drawing, font = ImageDraw.Draw(tile), ImageFont.load_default(12)
    drawing.text((0, SIDE + 2), title(classes[label])[:20], "black", font)
    for number, place in enumerate(common):
        top = SIDE + number * LINE
        part = float((likeliest == place).mean())
        if part:
            drawing.rectangle((SIDE + GAP, top + 4, SIDE + GAP + 9, top + 13), COLOURS[number])
            name = title(classes[int(labels.image.classes[place])])[:20]
            drawing.text((SIDE + GAP + 14, top + 2), f"{name}  {part:.0%} of cells", "black", font)
    return tile
