"""Labels that follow tokens: red and blue over the mixed image, layer by layer (TL-Align, Figures 5 and 8)."""

from dataclasses import dataclass

from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from labelflow.analysis.samples import mixed_samples, overlay, photo
from labelflow.figures.base import MAX_DRAWN, PAGE, FigureRequest, new, picture, shorten

PAIRS, SHOWN = 3, 4  # pairs, and layers of each


@dataclass(frozen=True)
class Row:
    """A mixed pair."""

    names: tuple[str, str]
    area: float  # λ
    arrived: float  # the own share of what reached the classifier
    answers: list[tuple[str, float]]  # what the model sees in the mixed image
    before: Tensor  # (h, w): the own share of each token
    layers: dict[str, Tensor]  # (h, w), after each layer
    pictures: list[Image.Image]  # own, partner's, mixed


@dataclass(frozen=True)
class Data:
    name: str
    mixer: str
    rows: list[Row]


def compute(request: FigureRequest) -> Data:
    (classifier,) = request.load(limit=1)
    rows, data = [], request.evaluation_data(classifier)
    for sample in mixed_samples(classifier, request.mixer, *request.images(PAIRS, of_each=2), data):
        pictures = [photo(image, classifier.preprocessing) for image in (*sample.images, sample.mixed)]
        first = next(iter(sample.layers.values()))
        before = sample.mix.tokens((first.shape[0], first.shape[1]))[0]
        rows.append(Row(sample.names, sample.area, sample.arrived, sample.answers, before, sample.layers, pictures))
    return Data(classifier.label, request.mixer, rows)


def draw(data: Data) -> Figure:
    names = list(data.rows[0].layers)
    last = len(names) - 1
    chosen = sorted({round(place * last / (SHOWN - 1)) for place in range(SHOWN)})
    rows = data.rows[:MAX_DRAWN]
    figure, axes = new(2 * len(rows), SHOWN, PAGE / SHOWN, 2.3)
    for row, above, below in zip(rows, axes[::2], axes[1::2], strict=True):
        own, partner = row.names
        titles = [f"own: {own}", f"partner: {partner}", "mixed"]
        for panel, image, title in zip(above, row.pictures, titles, strict=False):
            picture(panel, image, shorten(title, 24))
        picture(above[3], overlay(row.before, row.pictures[2]), f"before: λ = {row.area:.2f}")
        for panel in below[len(chosen) :]:
            panel.set_axis_off()
        for panel, place in zip(below, chosen, strict=False):
            arrives = f": {row.arrived:.2f}" if place == last else ""
            picture(panel, overlay(row.layers[names[place]], row.pictures[2]), f"layer {place + 1}{arrives}")
    figure.suptitle(f"{data.name}, {data.mixer}\nred is one's own, blue the partner's")
    return figure


def summary(data: Data) -> str:
    return "\n".join(
        f"{row.names[0]} + {row.names[1]}: λ {row.area:.3f}, at the classifier {row.arrived:.3f}; it sees "
        + " and ".join(f"{name} ({100 * chance:.0f} %)" for name, chance in row.answers)
        for row in data.rows
    )
