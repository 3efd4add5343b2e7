"""The kinds of tasks: one task, one entry in KINDS."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from torch import nn

from labelflow.align import Student
from labelflow.models.create import create
from labelflow.tasks.classify import Classification, Evaluation, Recipe
from labelflow.tasks.dense.task import DenseStudent
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
    unit: str  # of its headline

    @property
    def headline(self) -> str:
        """The metric that counts."""
        return self.task.headline  # type: ignore[attr-defined]


def _build_classifier(recipe: Recipe, card: dict[str, Any]) -> nn.Module:
    return create(card["model"], **card["arguments"])


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
            build=_build_classifier,
            unit="% top-1",
        ),
        Kind(
            name="segment",
            what="segmenter",
            recipe=SegmentRecipe,
            task=Segmentation,
            evaluation=partial(Segmentation, training=False),
            student=DenseStudent,
            build=build_segmenter,
            unit="% mIoU",
        ),
        Kind(
            name="detect",
            what="detector",
            recipe=DetectRecipe,
            task=Detection,
            evaluation=partial(Detection, training=False),
            student=DenseStudent,
            build=build_detector,
            unit="% box AP",
        ),
    )
}


def kind_of(recipe: AnyRecipe) -> Kind:
    return next(kind for kind in KINDS.values() if isinstance(recipe, kind.recipe))
