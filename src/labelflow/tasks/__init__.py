"""Data, model, loss and metrics of each task, and its runs."""

from labelflow.tasks.classify import Classification, Recipe
from labelflow.tasks.runs import Loaded, differences, evaluate_run, load_run, predict, train_run

__all__ = ["Classification", "Loaded", "Recipe", "differences", "evaluate_run", "load_run", "predict", "train_run"]
