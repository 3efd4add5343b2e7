"""Detection and instance segmentation: what the engine needs to run a recipe."""

from collections.abc import Callable
from typing import Any

from torch import Generator, Tensor, nn

from labelflow.loss import Term
from labelflow.tasks.dense.task import Colours, DenseTask, or_none
from labelflow.tasks.detect.data import open_source
from labelflow.tasks.detect.metrics import Detections, on_main, scores_and_classes
from labelflow.tasks.detect.model import CascadeMaskRCNN, make_detector
from labelflow.tasks.detect.views import Batch, eval_batches, train_batches
from labelflow.tasks.recipe import KINDS, DetectRecipe


class Detection(DenseTask):
    """A detector of a recipe on its data."""

    headline = KINDS["detect"].headline
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
        return _detector(self.recipe, self.recipe.backbone, len(self.classes), self.recipe.init)

    def colours(self) -> tuple[Colours, Colours]:
        return self.recipe.mean, self.recipe.std

    @property
    def config(self) -> dict[str, Any]:
        """What the model can be made of again, and what must be the same when a run goes on."""
        return {"model": self.model.backbone.levels.spec, "label_names": self.classes, "samples": self.samples}

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


def build_detector(recipe: DetectRecipe, config: dict[str, Any]) -> CascadeMaskRCNN:
    """The model of a run, from its config, with random weights."""
    return _detector(recipe, config["model"], len(config["label_names"]))


def _detector(recipe: DetectRecipe, backbone: str, classes: int, init: str = "") -> CascadeMaskRCNN:
    return make_detector(
        backbone,
        classes,
        init,
        sizes=recipe.sizes,
        drop_path=recipe.drop_path,
        short_side=recipe.short_side,
        long_side=recipe.long_side,
        mean=recipe.mean,
        std=recipe.std,
    )
