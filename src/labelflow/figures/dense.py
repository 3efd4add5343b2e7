"""Dense labels over images: what a classifier sees at every place (Token Labeling, Figure 2)."""

from collections import Counter
from dataclasses import dataclass

import torch
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from PIL import Image
from torch import Tensor

from labelflow.analysis.images import images_of
from labelflow.analysis.samples import photo
from labelflow.figures.base import COLOURS, MAX_DRAWN, FigureRequest, new, picture, shorten
from labelflow.labels.annotation import place_logits

IMAGES, NAMED = 4, 3  # images, and classes that have a colour of their own


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
        chances, places = (found.unflatten(0, grid) for found in logits[0].float().softmax(-1).max(-1))
        classes = [[classifier.class_name(place) for place in line] for line in places.tolist()]
        counted = Counter(name for line in classes for name in line).most_common()
        parts = {name: count / (grid[0] * grid[1]) for name, count in counted}
        rows.append(Row(one.name, classes, chances, parts, photo(one.image, classifier.preprocessing)))
    return Data(classifier.label, rows)


def draw(data: Data) -> Figure:
    rows = data.rows[:MAX_DRAWN]
    figure, axes = new(2, len(rows), 2.3, 2.5)
    for row, (above, below) in zip(rows, axes.T, strict=True):
        picture(above, row.picture, shorten(row.name))
        shown = dict(zip(list(row.parts)[:NAMED], COLOURS, strict=False))
        colours = torch.tensor([[to_rgb(shown.get(name, "#9e9e9e")) for name in line] for line in row.classes])
        alpha = 0.25 + 0.65 * row.sureness.clamp(0, 1)
        picture(below, row.picture.convert("L"), cmap="gray", vmin=0, vmax=255)
        extent = (-0.5, row.picture.width - 0.5, row.picture.height - 0.5, -0.5)
        below.imshow(torch.cat([colours, alpha[..., None]], -1).numpy(), extent=extent, interpolation="nearest")
        patches = [
            Patch(color=colour, label=f"{shorten(name, 22)} {row.parts[name]:.0%}") for name, colour in shown.items()
        ]
        below.legend(handles=patches, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, 0), handlelength=1)
    figure.suptitle(f"{shorten(data.annotator)}: each cell's likeliest class, the stronger the surer", fontsize=9)
    return figure


def summary(data: Data) -> str:
    return "\n".join(
        f"{row.name}: " + ", ".join(f"{name} {part:.0%}" for name, part in list(row.parts.items())[:NAMED])
        for row in data.rows
    )
