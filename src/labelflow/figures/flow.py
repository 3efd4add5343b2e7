"""The method in one animated picture: two images mixed, and their labels flowing layer by layer to the classifier."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from labelflow.align import Aligned, cells_as_sources
from labelflow.analysis.ratio import read_by_classifier
from labelflow.analysis.samples import SIDE, Sample, mixed_samples, overlay, photo
from labelflow.classifier import Classifier
from labelflow.data.images import read_or_refuse
from labelflow.figures.animation import Frame, film
from labelflow.figures.base import PAGE, FigureRequest, new, picture, shorten
from labelflow.flow import Labels
from labelflow.models.merging import require_all_tokens

SHOWN = 6  # layers, at most
CELLS = 8  # rows and columns of the places that are followed, at most


@dataclass(frozen=True)
class Step:
    """After a layer."""

    number: int  # of the layer, from 1
    map: Tensor  # (h, w): the own share of each token
    read: float  # the own share of what the classifier would read, were this the last layer
    places: Tensor  # (rows, columns): how much of that comes from each place of the image; they sum to 1


@dataclass(frozen=True)
class Data:
    name: str
    mixer: str
    names: tuple[str, str]  # own, partner
    area: float  # λ
    arrived: float  # the own share of what reached the classifier
    layers: int
    before: Tensor  # (h, w): the own share of each token before the first layer
    start: Tensor  # (rows, columns): the same of each place, the mean of its tokens
    steps: list[Step]
    pictures: list[Image.Image]  # own, partner's, mixed


def compute(request: FigureRequest) -> Data:
    (classifier,) = request.load(limit=1)
    _, files = request.images(1, of_each=2)  # the first pair
    (sample,) = mixed_samples(classifier, request.mixer, 1, files[:2], request.evaluation_data(classifier))
    rows, columns = next(iter(sample.layers.values())).shape
    cells = (min(rows, CELLS), min(columns, CELLS))
    before = sample.mix.tokens((rows, columns))[0]
    tokens = _tokens_of_places(before.shape, cells)
    steps = steps_of(classifier, sample, cells)
    last = len(steps) - 1
    chosen = sorted({round(place * last / (SHOWN - 1)) for place in range(SHOWN)})
    return Data(
        classifier.label,
        request.mixer,
        sample.names,
        sample.area,
        sample.arrived,
        len(steps),
        before,
        (before.flatten() @ tokens / tokens.sum(0)).unflatten(0, cells),
        [steps[place] for place in chosen],
        _pictures(classifier, sample, files),
    )


def _tokens_of_places(grid: Sequence[int], cells: Sequence[int]) -> Tensor:
    """Which tokens lie in which place, (N, K) of zeros and ones: not equally many, unless the grid divides."""
    return cells_as_sources((grid[0], grid[1]), (cells[0], cells[1]), torch.device("cpu"))[0]


def _pictures(classifier: Classifier, sample: Sample, files: Sequence[Path]) -> list[Image.Image]:
    """The own image, the partner's and their mix: of files sharper than a model for small images sees them."""
    images, mix, preprocessing = sample.images, sample.mix, classifier.preprocessing
    scale = -(-SIDE // preprocessing.size)
    if files and scale > 1:
        sharper = replace(preprocessing, size=scale * preprocessing.size).transform()
        images = torch.stack([sharper(read_or_refuse(path)) for path in files[:2]])
        share = mix.share.repeat_interleave(scale, 2).repeat_interleave(scale, 3)
        mix = replace(mix, share=share, box=None if mix.box is None else scale * mix.box)
    return [photo(image, preprocessing) for image in (*images, mix.apply(images)[0])]


@torch.no_grad()
def steps_of(classifier: Classifier, sample: Sample, cells: tuple[int, int]) -> list[Step]:
    """Every layer, with two kinds of labels: the two images, and the places of the mixed one."""
    model, images, share = classifier.model, sample.mixed.unsqueeze(0), sample.mix.share[:1]
    require_all_tokens(model, "labels layer by layer need")
    aligned, followed = Aligned(model), []

    def leave(name: str, labels: Labels) -> None:
        prefix = labels.prefix.shape[1]
        columns = labels.values.unbind(-1)  # (1, N) for each place
        followed.append(torch.cat([read_by_classifier(model, column, prefix) for column in columns]))

    def places(grid: tuple[int, int]) -> Tensor:
        return cells_as_sources(grid, cells, images.device)

    aligned.follower.run(model, images, share, tokens=True, initial_labels=places, leave=leave)
    steps = []
    for number, (layer, came) in enumerate(zip(aligned.trace(images, share), followed, strict=True), start=1):
        prefix = layer.share.shape[1] - layer.map.shape[1] * layer.map.shape[2]
        read = float(read_by_classifier(model, layer.share, prefix))
        steps.append(Step(number, layer.map[0], read, came.unflatten(0, cells)))
    return steps


def draw(data: Data) -> Figure:
    """All of the film at once."""
    mixed = data.pictures[2]
    rows = 2 + (len(data.steps) - 1) // 4
    figure, axes = new(rows + 1, 4, PAGE / 4, 2.2)
    own, partner = (shorten(name, 18) for name in data.names)
    titles = [f"own: {own}", f"partner: {partner}", "mixed", f"before: λ = {data.area:.2f}"]
    images = [*data.pictures, overlay(data.before, mixed)]
    titles += [f"layer {step.number}: {step.read:.2f}" for step in data.steps]
    images += [overlay(step.map, mixed) for step in data.steps]
    for panel, image, title in zip(axes.flat, images, titles, strict=False):
        picture(panel, image, title)
    for panel in axes.flat:
        panel.set_axis_off()
    line = figure.add_subplot(axes[rows, 0].get_gridspec()[rows, :])
    line.plot(
        [0, *(step.number for step in data.steps)], [data.area, *(step.read for step in data.steps)], "o-", c="#ca0020"
    )
    line.axhline(data.area, color="#636363", ls=":", label="λ, by area")
    line.set(xlabel="after layer", ylabel=f"share of {own}")
    line.locator_params(axis="x", integer=True)
    line.legend()
    figure.suptitle(f"{data.name}, {data.mixer}\nred is the image itself, blue its partner")
    return figure


def animate(data: Data) -> str:
    """The same as an SVG that moves, and rests where motion is not wanted."""
    mixed = data.pictures[2]
    before = Frame("Labels by area, as in CutMix", overlay(data.before, mixed), data.area)
    even = _tokens_of_places(data.before.shape, data.start.shape).mean(0)  # if each token counted alike
    even = even.unflatten(0, data.start.shape)
    after = [
        Frame(f"After layer {step.number} of {data.layers}", overlay(step.map, mixed), step.read, step.places / even)
        for step in data.steps
    ]
    return film(data.pictures, data.names, data.start, [before, *after])


def summary(data: Data) -> str:
    shares = ", ".join(f"{step.read:.3f} after layer {step.number}" for step in data.steps)
    return f"{data.names[0]} + {data.names[1]}: λ {data.area:.3f}; {shares}; at the classifier {data.arrived:.3f}"
