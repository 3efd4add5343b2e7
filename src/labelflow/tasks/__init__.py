"""Data, model, loss and metrics of each task, and its runs."""

from labelflow.tasks.annotation import Annotate, annotate_data, make_annotator
from labelflow.tasks.classify import Classification, Recipe
from labelflow.tasks.runs import Loaded, differences, evaluate_run, load_run, predict, train_run

__all__ = [
    "Annotate",
    "Classification",
    "Loaded",
    "Recipe",
    "annotate_data",
    "differences",
    "evaluate_run",
    "load_run",
    "make_annotator",
    "predict",
    "train_run",
]
