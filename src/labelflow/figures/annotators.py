"""Accuracy against the annotator of the token labels (Token Labeling, Figure 4, right)."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from labelflow.data import Data as Settings
from labelflow.data import open_map_style
from labelflow.data.geometry import Geometry
from labelflow.engine.run import Run
from labelflow.figures import results
from labelflow.figures.base import FigureRequest, colour, new, shorten
from labelflow.figures.results import Result, results_of
from labelflow.labels import Store, label_view
from labelflow.tasks import Recipe
from labelflow.tasks.recipe import read_recipe

LOOKED_AT = 500  # training images, to see how often an annotator is right


@dataclass(frozen=True)
class Data:
    runs: list[Result]
    annotators: list[str]


def compute(request: FigureRequest) -> Data:
    runs = results_of(request.models, _rightness)
    stores = [Store(read_recipe(Run(Path(str(folder)))).data.labels) for folder in request.models]
    return Data(runs, [store.manifest.annotator for store in stores])


def _rightness(run: Run, recipe: Recipe) -> float:
    """In percent."""
    if not recipe.data.labels:
        raise ValueError(f"{run.folder} has no dense labels; this figure wants runs with --labels")
    return 100 * annotator_accuracy(Store(recipe.data.labels), recipe.data)


def annotator_accuracy(store: Store, data: Settings) -> float:
    """How often an annotator's label map, pooled, says the image's own class: on training images, of which it may have
    been trained on some."""
    source = open_map_style(data, "train")
    right = []
    for index in np.linspace(0, len(source) - 1, min(LOOKED_AT, len(source))).round().astype(int).tolist():
        image, label = source.load(index)
        manifest = store.manifest
        view = label_view(
            store[source.key(index)], Geometry(image.size), manifest.grid, len(manifest.classes), manifest.seen
        )
        right.append(int(view.image.classes[0, view.image.above[0].argmax()]) == label)
    return sum(right) / len(right)


def draw(data: Data) -> Figure:
    figure, axes = new(1, 1, 6.4, 4.4)
    panel = axes[0, 0]
    results.plot_points(panel, data.runs, [colour(place) for place in range(len(data.runs))])
    pairs = zip(data.runs, data.annotators, strict=True)
    results.name_points(panel, data.runs, [f"{shorten(one.run)}\n{shorten(annotator)}" for one, annotator in pairs])
    panel.set_xlabel("how often the annotator is right, %")
    panel.set_ylabel("top-1 accuracy, %")
    panel.margins(0.25)
    return figure


def summary(data: Data) -> str:
    return results.summary(data.runs, "annotator, %")
