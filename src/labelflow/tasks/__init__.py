"""Data, model, loss and metrics of each task, and its runs."""

from typing import TYPE_CHECKING

from labelflow.lazy import exports

if TYPE_CHECKING:
    from labelflow.labels.settings import Annotate
    from labelflow.tasks.annotation import annotate_data
    from labelflow.tasks.classify import Classification
    from labelflow.tasks.detect.settings import SURE
    from labelflow.tasks.predictions import find_objects, find_segments
    from labelflow.tasks.recipe import AnyRecipe, DetectRecipe, Recipe, SegmentRecipe
    from labelflow.tasks.runs import LoadedRun, evaluate_run, load_run, train_run
else:
    __getattr__, __dir__ = exports(__name__)

__all__ = [
    "SURE",
    "Annotate",
    "AnyRecipe",
    "Classification",
    "DetectRecipe",
    "LoadedRun",
    "Recipe",
    "SegmentRecipe",
    "annotate_data",
    "evaluate_run",
    "find_objects",
    "find_segments",
    "load_run",
    "train_run",
]
