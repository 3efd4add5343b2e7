"""Data, model, loss and metrics of each task, and its runs."""

from labelflow.tasks.annotation import Annotate, annotate_data
from labelflow.tasks.classify import Classification, Recipe
from labelflow.tasks.detect.task import DetectRecipe
from labelflow.tasks.kinds import AnyRecipe
from labelflow.tasks.predictions import SURE, find_objects, find_segments
from labelflow.tasks.runs import LoadedRun, differences, evaluate_run, load_run, train_run
from labelflow.tasks.segment.task import SegmentRecipe

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
    "differences",
    "evaluate_run",
    "find_objects",
    "find_segments",
    "load_run",
    "train_run",
]
