"""Labels mixed by area: what CutMix and MixUp train on. Without mixing, plain classification."""

from torch import nn

from labelflow.align import Output, Student
from labelflow.loss import Term
from labelflow.mix import Mix
from labelflow.targets.base import Teaching, Truth


class Plain:
    """Cross-entropy with λ·y + (1-λ)·y', λ being the area (TL-Align, Eq. 1)."""

    dense = False
    teacher: Teaching = ""

    def student(self, model: nn.Module) -> Student:
        return Student(model)

    def __call__(self, output: Output, truth: Truth, mix: Mix) -> list[Term]:
        return [Term("class", truth.loss(output.logits, mix.blend(truth.classes)).mean())]
