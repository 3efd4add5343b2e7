"""Where a model looks for its likeliest classes: relevance maps of Chefer et al. (Token Labeling, Figures 6 and 7)."""

from dataclasses import dataclass
from statistics import mean

import torch
from matplotlib import colormaps
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from labelflow.analysis.images import LabelledImage, images_of
from labelflow.analysis.relevance import relevance, upsampled
from labelflow.analysis.samples import likeliest, photo
from labelflow.classifier import Classifier
from labelflow.figures.base import MAX_DRAWN, PAGE, FigureRequest, new, picture, shorten

IMAGES = 4


@dataclass(frozen=True)
class Map:
    """Of one class."""

    name: str
    chance: float  # its probability
    values: Tensor  # (h, w), at each token
    inside: float | None  # the part of relevance that lies on what is to be seen of that class, where that is known
    object: float | None  # the part of the image that it covers


@dataclass(frozen=True)
class Row:
    """One image, seen by all models."""

    name: str
    maps: dict[str, list[Map]]  # of each model
    picture: Image.Image


@dataclass(frozen=True)
class Data:
    method: str
    models: list[str]
    rows: list[Row]

    def inside(self, model: str) -> list[Map]:
        """The maps of classes that are there, and whose places are known."""
        return [one for row in self.rows for one in row.maps[model] if one.inside is not None]


def compute(request: FigureRequest) -> Data:
    if request.top < 1:
        raise ValueError(f"top must be at least 1, not {request.top}")
    classifiers = request.load()
    names = [classifier.label for classifier in classifiers]
    if len(set(names)) != len(names):
        raise ValueError(f"models must not repeat: {', '.join(names)}")
    rows: list[Row] = []
    for classifier in classifiers:  # all are shown the first one's images, each sees them in its own way
        found = images_of(classifier, *request.images(IMAGES), request.evaluation_data(classifiers[0]))
        for place, one in enumerate(request.track(found, f"images, {classifier.name}")):
            if classifier is classifiers[0]:
                rows.append(Row(one.name, {}, photo(one.image, classifier.preprocessing)))
            rows[place].maps[classifier.label] = _maps(classifier, one, request)
    return Data(request.method, names, rows)


def _maps(classifier: Classifier, labelled: LabelledImage, request: FigureRequest) -> list[Map]:
    image = labelled.image[None]
    with torch.no_grad():
        logits = classifier.model(image)[0]
    named = likeliest(classifier, logits, request.top)
    maps = []
    for place, (name, chance) in zip(logits.topk(len(named)).indices, named, strict=True):
        values = relevance(classifier.model, image, place[None], request.method)[0]
        mask = labelled.masks.get(name)
        inside = None if mask is None else _inside(values, mask)
        maps.append(Map(name, chance, values, inside, None if mask is None else float(mask.float().mean())))
    return maps


def _inside(values: Tensor, mask: Tensor) -> float:
    """The part of relevance (h, w), none of which is negative, that lies in a mask (H, W)."""
    cells = torch.nn.functional.adaptive_avg_pool2d(mask[None].float(), (values.shape[0], values.shape[1]))[0]
    return float((values * cells).sum() / values.sum().clamp_min(1e-12))


def draw(data: Data) -> Figure:
    top, rows = max(len(maps) for row in data.rows for maps in row.maps.values()), data.rows[:MAX_DRAWN]
    columns = 1 + top * len(data.models)
    width = max(1.6, min(2.2, PAGE / columns))  # wider than a page if there are more than five columns
    figure, axes = new(len(rows), columns, width, width + 0.75)
    for row, line in zip(rows, axes, strict=True):
        picture(line[0], row.picture, shorten(row.name, 18))
        panels = iter(line[1:])
        for model in data.models:
            for one in row.maps[model]:
                lies = "" if one.inside is None else f"\n{one.inside:.0%} on it"
                heated = heat(one.values, row.picture)
                picture(next(panels), heated, f"{shorten(model, 18)}\n{shorten(one.name, 15)} {one.chance:.0%}{lies}")
    return figure


def heat(values: Tensor, under: Image.Image) -> Image.Image:
    """Relevance (h, w) over a picture, from blue (none) to red (the most)."""
    strength = upsampled(values[None], (under.height, under.width))[0]
    colours = Image.fromarray(colormaps["jet"](strength.numpy(), bytes=True)[..., :3])
    return Image.blend(under.convert("RGB"), colours, 0.5)


def summary(data: Data) -> str:
    lines = []
    for model in data.models:
        known = data.inside(model)
        if known:
            part, area = (mean(getattr(one, name) for one in known) for name in ("inside", "object"))
            lines.append(
                f"{model}: {part:.0%} of relevance lies on the object, which covers {area:.0%} ({len(known)} maps)"
            )
        else:
            lines.append(f"{model}: {', '.join(row.maps[model][0].name for row in data.rows)}")
    return "\n".join(lines)
