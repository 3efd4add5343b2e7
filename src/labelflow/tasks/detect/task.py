"""Detection and instance segmentation: the recipe, and what the engine needs to run it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Generator, Tensor, nn

from labelflow.engine import Training
from labelflow.loss import Term
from labelflow.tasks.dense.task import Colours, DenseTask, check_drop_path, or_none
from labelflow.tasks.detect.data import open_source
from labelflow.tasks.detect.metrics import Detections, on_main, scores_and_classes
from labelflow.tasks.detect.model import CascadeMaskRCNN, make_detector
from labelflow.tasks.detect.settings import DetectData, Sizes
from labelflow.tasks.detect.views import Batch, eval_batches, train_batches
from labelflow.tasks.parts import Changeable


@dataclass(frozen=True)
class DetectRecipe(Changeable):
    """Everything that decides what a detector's run computes."""

    backbone: str = "swin_tiny_patch4_window7_224"
    """A timm model with maps at strides 4, 8, 16 and 32, or the folder of a run, whose model and weights are taken."""
    start: str = ""
    """A timm model's weights: '' for random ones, pretrained for timm's, a checkpoint file, or the folder of a run."""
    drop_path: float = 0.2
    """Stochastic depth of the backbone, growing linearly to this rate."""
    short_side: int = 800
    """In evaluation, images are resized until their shorter side is this long, …"""
    long_side: int = 1333
    """… or their longer side that long, whichever is less."""
    mean: tuple[float, float, float] = IMAGENET_DEFAULT_MEAN
    """Mean of the colour channels, taken off."""
    std: tuple[float, float, float] = IMAGENET_DEFAULT_STD
    """Spread of the colour channels, divided by."""
    sizes: Sizes = field(default_factory=Sizes)
    data: DetectData = field(default_factory=DetectData)
    training: Training = field(default_factory=Training)

    def __post_init__(self) -> None:
        check_drop_path(self.drop_path)
        if not 1 <= self.short_side <= self.long_side:
            raise ValueError(f"sides must be 1 ≤ short_side ≤ long_side, not {self.short_side} and {self.long_side}")

    @property
    def title(self) -> str:
        return f"Cascade Mask R-CNN on {self.backbone}"


class Detection(DenseTask):
    """A detector of a recipe on its data."""

    headline = "box_ap"
    open = staticmethod(open_source)
    train_loader = staticmethod(train_batches)
    eval_loader = staticmethod(eval_batches)

    def __init__(self, recipe: DetectRecipe, tell: Callable[[str], None] = print, training: bool = True) -> None:
        super().__init__(recipe, tell, training)
        self.found = Detections()
        dropped = self.eval_source.dropped + (self.train_source.dropped if training else 0)  # type: ignore[attr-defined]
        if dropped:
            tell(f"left out {dropped} objects with invalid boxes or masks")

    def make_model(self) -> CascadeMaskRCNN:
        if self.recipe.training.compile:
            raise ValueError("a detector would be recompiled for every image size: omit --compile")
        return _detector(self.recipe, self.recipe.backbone, len(self.classes), self.recipe.start)

    def colours(self) -> tuple[Colours, Colours]:
        return self.recipe.mean, self.recipe.std

    @property
    def card(self) -> dict[str, Any]:
        """What the model can be made of again, and what must be the same when a run goes on."""
        return {"model": self.model.backbone.levels.spec, "classes": self.classes, "samples": self.samples}

    def terms(self, student: nn.Module, batch: Batch, generator: Generator) -> list[Term]:
        return [Term(name, loss) for name, loss in student(batch.images, batch.targets).items()]

    def measure(self, student: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Collects detections; what is summed is the number of images."""
        for found, number, weight in zip(student(batch.images), batch.numbers, batch.weights, strict=True):
            if weight:
                self.found.add(found, number, self.eval_source.categories)
        return {"images": batch.images[0].new_tensor(sum(batch.weights))}

    def metrics(self, sums: dict[str, Tensor]) -> dict[str, float]:
        """Average precision, in percent."""
        results, images = self.found.take()
        found, classes = on_main(lambda: scores_and_classes(self.eval_source.truth(), results, images))
        self._details = {name: {kind: or_none(ap) for kind, ap in own.items()} for name, own in classes.items()}
        return found


def build_detector(recipe: DetectRecipe, card: dict[str, Any]) -> CascadeMaskRCNN:
    """The model of a run, from its card, with random weights."""
    return _detector(recipe, card["model"], len(card["classes"]))


def _detector(recipe: DetectRecipe, backbone: str, classes: int, start: str = "") -> CascadeMaskRCNN:
    return make_detector(
        backbone,
        classes,
        start,
        sizes=recipe.sizes,
        drop_path=recipe.drop_path,
        short_side=recipe.short_side,
        long_side=recipe.long_side,
        mean=recipe.mean,
        std=recipe.std,
    )
