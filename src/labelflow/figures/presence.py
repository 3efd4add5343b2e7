"""The presence of tokens in each layer, for attention and for convolution (TL-Align, Eq. 2)."""

from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from PIL import Image
from torch import Tensor

from labelflow.analysis.images import images_of
from labelflow.analysis.presence import presence
from labelflow.analysis.samples import photo
from labelflow.figures.base import PAGE, FigureRequest, colour, look, picture, shorten

IMAGES, SHOWN = 4, 4  # images that are averaged over, and maps that are drawn
BORDER = 6  # a kernel of 7 reaches 3 places, and what it does at the border as many more


@dataclass(frozen=True)
class Layer:
    """Quantiles of presence over all tokens and images: 1 is the average where as many tokens leave as enter."""

    name: str
    low: float  # a twentieth of the tokens have less
    median: float
    high: float  # a twentieth have more
    deviation: float  # standard, of the tokens with a place in the image
    inner: float | None  # the same away from the border, of which Eq. 3 speaks; None: no token is so far away
    map: Tensor  # (h, w), of the first image


@dataclass(frozen=True)
class Row:
    name: str
    picture: Image.Image
    layers: list[Layer]


@dataclass(frozen=True)
class Data:
    images: int
    rows: list[Row]


def compute(request: FigureRequest) -> Data:
    rows, count = [], 0
    for classifier in request.track(request.load(), "models"):
        found = images_of(classifier, *request.images(IMAGES), request.evaluation_data(classifier))
        count = len(found)
        images = torch.stack([one.image for one in found])
        layers = []
        for layer in presence(classifier.model, images):
            low, median, high = layer.values.flatten().quantile(torch.tensor([0.05, 0.5, 0.95])).tolist()
            inner = layer.map[:, BORDER:-BORDER, BORDER:-BORDER]
            deviation = float(layer.map.std(unbiased=False))
            away = float(inner.std(unbiased=False)) if inner.numel() else None
            layers.append(Layer(layer.name, low, median, high, deviation, away, layer.map[0]))
        rows.append(Row(classifier.label, photo(images[0], classifier.preprocessing), layers))
    return Data(count, rows)


def draw(data: Data) -> Figure:
    heights = [*[1.95] * len(data.rows), 3.2]
    figure = Figure(figsize=(PAGE, sum(heights)), layout="constrained")
    *maps, curves = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    for row, part in zip(data.rows, maps, strict=True):
        _draw_maps(part, row)
    panel = curves.subplots()
    for number, row in enumerate(data.rows):
        places = range(1, 1 + len(row.layers))
        panel.plot(places, [layer.median for layer in row.layers], **look(number), label=shorten(row.name, 40))
        low, high = ([getattr(layer, end) for layer in row.layers] for end in ("low", "high"))
        panel.fill_between(places, low, high, color=colour(number), alpha=0.2, lw=0)
    panel.axhline(1, color="black", lw=0.8, ls=":")
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.set_xlabel("layer")
    panel.set_ylabel("presence:\nmedian, 5 to 95 %")
    panel.set_ylim(bottom=0)
    panel.legend()
    return figure


def _draw_maps(part: Any, row: Row) -> None:
    """An image and its presence in some layers. Dashes frame what lies out of the border's reach, where it is even."""
    part.suptitle(row.name, x=0.01, ha="left")
    axes = part.subplots(1, 1 + SHOWN)
    picture(axes[0], row.picture, "image")
    step = max(1, len(row.layers) - 1)
    chosen = sorted({round(place * step / (SHOWN - 1)) for place in range(SHOWN)} & set(range(len(row.layers))))
    for panel in axes[1:]:
        panel.set_axis_off()
    for panel, place in zip(axes[1:], chosen, strict=False):
        layer = row.layers[place]
        picture(panel, layer.map, f"layer {place + 1}: ±{layer.deviation:.2f}", vmin=0, vmax=2, cmap="PuOr_r")
        if layer.inner is not None and layer.inner < layer.deviation / 10:
            height, width = (side - 2 * BORDER for side in layer.map.shape)
            corner = (BORDER - 0.5, BORDER - 0.5)
            panel.add_patch(Rectangle(corner, width, height, fill=False, ls="--", lw=1.2))
    part.colorbar(axes[1].images[0], ax=axes, ticks=[0, 1, 2], aspect=12)


def summary(data: Data) -> str:
    lines = []
    for row in data.rows:
        spread = [layer.deviation for layer in row.layers]
        away = [layer.inner for layer in row.layers if layer.inner is not None]
        inside = f", away from the border by {min(away):.3f} to {max(away):.3f}" if away else ""
        lines.append(f"{row.name}: presence deviates by {min(spread):.3f} to {max(spread):.3f}, layer by layer{inside}")
    return "\n".join(lines)
