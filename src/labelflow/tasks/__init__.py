"""Data, model, loss and metrics of each task, and its runs."""

from labelflow.tasks.annotation import Annotate, annotate_data, make_annotator
from labelflow.tasks.classify import Classification, Recipe
from labelflow.tasks.detect.task import DetectRecipe
from labelflow.tasks.kinds import AnyRecipe
from labelflow.tasks.predictions import SURE, find_objects, find_segments, predict
from labelflow.tasks.runs import Loaded, differences, evaluate_run, load_any, load_run, train_run
from labelflow.tasks.segment.task import SegmentRecipe

__all__ = [
    "SURE",
    "Annotate",
    "AnyRecipe",
    "Classification",
    "DetectRecipe",
    "Loaded",
    "Recipe",
    "SegmentRecipe",
    "annotate_data",
    "differences",
    "evaluate_run",
    "find_objects",
    "find_segments",
    "load_any",
    "load_run",
    "make_annotator",
    "predict",
    "train_run",
]
