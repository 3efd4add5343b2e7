"""The kinds of tasks: one task, one entry in KINDS."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from torch import nn

from labelflow.align import Student
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
    build: Callable[..., nn.Module] | None  # (recipe, card) -> its run's model, with random weights; None: a classifier
    unit: str  # of its headline

    @property
    def headline(self) -> str:
        """The metric that counts."""
        return self.task.headline  # type: ignore[attr-defined]


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            name="train",
            what="classifier",
            recipe=Recipe,
            task=Classification,
            evaluation=Evaluation,
            student=Student,
            build=None,
            unit="% top-1",
        ),
        Kind(
            name="segment",
            what="segmenter",
            recipe=SegmentRecipe,
            task=Segmentation,
            evaluation=partial(Segmentation, training=False),
            student=Whole,
            build=build_segmenter,
            unit="% mIoU",
        ),
        Kind(
            name="detect",
            what="detector",
            recipe=DetectRecipe,
            task=Detection,
            evaluation=partial(Detection, training=False),
            student=Whole,
            build=build_detector,
            unit="% box AP",
        ),
    )
}


def kind_of(recipe: AnyRecipe) -> Kind:
    return next(kind for kind in KINDS.values() if isinstance(recipe, kind.recipe))
