"""The pages of segmenters and detectors: predictions on evaluation images, and scores by class."""

from collections.abc import Callable, Iterator
from html import escape
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from labelflow.analysis.drawn import beside, draw_objects, draw_segments
from labelflow.engine.run import Run
from labelflow.html import data_uri
from labelflow.report import classes
from labelflow.report.page import NO_WEIGHTS, Measured, has_weights, make_page
from labelflow.tasks import SURE, find_objects, find_segments, load_run
from labelflow.tasks.dense.loading import DenseSource
from labelflow.tasks.detect.data import open_source as open_objects
from labelflow.tasks.recipe import read_any_recipe
from labelflow.tasks.runs import LoadedRun
from labelflow.tasks.segment.data import open_source as open_masks

COUNT = 6  # images
MIOU = Measured(
    "miou",
    "mIoU",
    {"Mean IoU, %": "miou", "Pixel accuracy, %": "pixel_accuracy", "Mean accuracy, %": "mean_accuracy"},
)
BOX_AP = Measured("box_ap", "box AP", {"Box AP, %": "box_ap", "Box AP50, %": "box_ap50", "Mask AP, %": "mask_ap"})


def segmenter_page(run: Run) -> str:
    return _page(run, MIOU, segment_pictures, "ground truth and prediction")


def detector_page(run: Run) -> str:
    return _page(run, BOX_AP, object_pictures, f"ground truth, and predictions with a score above {100 * SURE:.0f} %")


def segment_pictures(loaded: LoadedRun[Any], count: int = COUNT) -> list[Image.Image]:
    """Evaluation images at even distances: ground truth and prediction."""
    source = open_masks(loaded.recipe.data, "val")
    pictures = []
    for sample in _samples(source, count):
        image = _image(sample.image)
        found = find_segments(loaded, image)
        pictures.append(beside(*(draw_segments(image, one, loaded.classes) for one in (sample.mask, found))))
    return pictures


def object_pictures(loaded: LoadedRun[Any], count: int = COUNT) -> list[Image.Image]:
    """Evaluation images at even distances: true and predicted objects."""
    source = open_objects(loaded.recipe.data, "val")
    pictures = []
    for sample in _samples(source, count):
        image = _image(sample.image)
        truth = {"boxes": sample.boxes, "labels": sample.labels, "masks": sample.masks}
        pictures.append(
            beside(*(draw_objects(image, one, loaded.classes) for one in (truth, find_objects(loaded, image))))
        )
    return pictures


def _page(run: Run, measured: Measured, draw: Callable[[LoadedRun[Any]], list[Image.Image]], about: str) -> str:
    shown = NO_WEIGHTS
    if has_weights(run):
        loaded = load_run(run.folder)
        try:
            shown = f"<p>Evaluation images: {about}.</p>" + "".join(map(_figure, draw(loaded)))
        except (ValueError, OSError) as error:  # no data
            shown = f"<p>No predictions: {escape(str(error))}.</p>"
    sections = f"<section><h2>Predictions</h2>{shown}</section>{classes.section(run)}"
    return make_page(run, read_any_recipe(run).title, sections, measured)


def _figure(picture: Image.Image) -> str:
    source = data_uri(picture, "JPEG")
    return f'<img src="{source}" alt="Ground truth and prediction" width="{picture.width}" class="figure">'


def _samples(source: DenseSource, count: int) -> Iterator[Any]:
    """Those that can be read, of so many at even distances."""
    for index in np.unique(np.linspace(0, len(source) - 1, min(count, len(source))).round().astype(int)).tolist():
        try:
            yield source.load(index)
        except (ValueError, OSError):  # reported in the evaluation
            continue


def _image(pixels: Tensor) -> Image.Image:
    """(3, H, W) uint8"""
    return Image.fromarray(pixels.permute(1, 2, 0).numpy())
