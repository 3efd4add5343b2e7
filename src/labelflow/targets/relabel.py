"""ReLabel (Yun et al., CVPR 2021): what an annotator saw in the crop, instead of the image's class."""

from torch import nn

from labelflow.align import Output, Student
from labelflow.loss import Term
from labelflow.mix import Mix
from labelflow.targets.base import Teaching, Truth


class ReLabel:
    """Cross-entropy with the label map's mean over the view, mixed by area: λ·y + (1-λ)·y'."""

    dense = True
    teacher: Teaching = ""

    def student(self, model: nn.Module) -> Student:
        return Student(model)

    def __call__(self, output: Output, truth: Truth, mix: Mix) -> list[Term]:
        assert truth.dense is not None
        labels = truth.dense.image.mixed(mix.partner, mix.lam)
        return [Term("class", truth.loss(output.logits, labels).mean())]
