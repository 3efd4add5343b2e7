"""Dense labels over images: what a classifier sees at every place (Token Labeling, Figure 2)."""

from collections import Counter
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from PIL import Image
from torch import Tensor

from labelflow.analysis.drawn import OTHERS, Colour, class_colours
from labelflow.analysis.images import images_of
from labelflow.analysis.samples import photo
from labelflow.figures.base import MAX_DRAWN, PAGE, FigureRequest, new, picture, shorten
from labelflow.labels.annotation import place_logits

IMAGES, COLUMNS = 4, 4


@dataclass(frozen=True)
class Row:
    name: str
    classes: list[list[str]]  # (h, w): the likeliest class of each cell
    sureness: Tensor  # (h, w): its probability
    parts: dict[str, float]  # of the cells, for each class, the commonest first
    picture: Image.Image


@dataclass(frozen=True)
class Data:
    annotator: str
    rows: list[Row]


@torch.no_grad()
def compute(request: FigureRequest) -> Data:
    (classifier,) = request.load(limit=1)
    rows = []
    for one in images_of(classifier, *request.images(IMAGES), request.evaluation_data(classifier)):
        logits, grid = place_logits(classifier.model, one.image[None])
        chances, places = (found.unflatten(0, grid) for found in classifier.as_probabilities(logits[0]).max(-1))
        classes = [[classifier.class_name(place) for place in line] for line in places.tolist()]
        counted = Counter(name for line in classes for name in line).most_common()
        parts = {name: count / (grid[0] * grid[1]) for name, count in counted}
        rows.append(Row(one.name, classes, chances, parts, photo(one.image, classifier.preprocessing)))
    return Data(classifier.label, rows)


def draw(data: Data) -> Figure:
    rows = data.rows[:MAX_DRAWN]
    shown = {name: _fraction(own) for name, own in class_colours(_counts(rows)).items()}
    columns = min(COLUMNS, len(rows))
    blocks = -(-len(rows) // columns)
    width, legend = PAGE / max(3, columns), 0.5 + 0.27 * -(-len(shown) // 3)  # inches
    figure, axes = new(2 * blocks, columns, width, width + 0.1 + legend / (2 * blocks))
    for panel in axes.flat:
        panel.set_axis_off()
    for place, row in enumerate(rows):
        block, column = divmod(place, columns)
        above, below = axes[2 * block : 2 * block + 2, column]
        picture(above, row.picture, shorten(row.name, 22))
        grey = _fraction(OTHERS)
        colours = torch.tensor([[shown.get(name, grey) for name in line] for line in row.classes])
        alpha = 0.25 + 0.65 * row.sureness.clamp(0, 1)
        picture(below, row.picture.convert("L"), cmap="gray", vmin=0, vmax=255)
        extent = (-0.5, row.picture.width - 0.5, row.picture.height - 0.5, -0.5)
        below.imshow(torch.cat([colours, alpha[..., None]], -1).numpy(), extent=extent, interpolation="nearest")
    patches = [Patch(color=own, label=shorten(name, 22)) for name, own in shown.items()]
    if len(_counts(rows)) > len(shown):
        patches.append(Patch(color=_fraction(OTHERS), label="other classes"))
    figure.legend(handles=patches, loc="outside lower center", ncols=3, handlelength=1)
    figure.suptitle(f"{shorten(data.annotator)}: each cell's likeliest class, the stronger the surer")
    return figure


def _counts(rows: list[Row]) -> Counter[str]:
    """How many cells of the figure each class has."""
    return Counter(name for row in rows for line in row.classes for name in line)


def _fraction(colour: Colour) -> tuple[float, float, float]:
    """As matplotlib wants it, from 0 to 1."""
    red, green, blue = colour
    return red / 255, green / 255, blue / 255


def summary(data: Data) -> str:
    return "\n".join(
        f"{row.name}: " + ", ".join(f"{name} {part:.0%}" for name, part in list(row.parts.items())[:3])
        for row in data.rows
    )
