"""The kinds of tasks: one task, one line in KINDS."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from torch import nn

from labelflow.align import Student
from labelflow.models.create import create
from labelflow.tasks.classify import Classification, Evaluation, Recipe
from labelflow.tasks.dense.student import Whole
from labelflow.tasks.detect.task import Detection, DetectRecipe, build_detector
from labelflow.tasks.segment.task import Segmentation, SegmentRecipe, build_segmenter

AnyRecipe = Recipe | SegmentRecipe | DetectRecipe


class Kind(NamedTuple):
    """Of a task."""

    name: str  # of its command, and in model.json
    what: str  # it trains
    recipe: type[Any]
    task: Callable[..., Any]  # (recipe, tell) -> an engine.Task with a card
    evaluation: Callable[..., Any]  # (recipe, tell) -> an engine.Evaluated with an eval_source
    student: Callable[[nn.Module], nn.Module]  # what an evaluation asks
    build: Callable[..., nn.Module]  # (recipe, card) -> the model of a run, with random weights
    headline: str  # the metric that counts
    unit: str  # of it


def _build_classifier(recipe: Recipe, card: dict[str, Any]) -> nn.Module:
    return create(card["model"], **card["arguments"])


KINDS = {
    "train": Kind(
        "train", "classifier", Recipe, Classification, Evaluation, Student, _build_classifier, "top1", "% top-1"
    ),
    "segment": Kind(
        "segment",
        "segmenter",
        SegmentRecipe,
        Segmentation,
        partial(Segmentation, training=False),
        Whole,
        build_segmenter,
        "miou",
        "% mIoU",
    ),
    "detect": Kind(
        "detect",
        "detector",
        DetectRecipe,
        Detection,
        partial(Detection, training=False),
        Whole,
        build_detector,
        "box_ap",
        "% box AP",
    ),
}


def kind_of(recipe: AnyRecipe) -> Kind:
    return next(kind for kind in KINDS.values() if isinstance(recipe, kind.recipe))
