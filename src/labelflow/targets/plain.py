"""Labels mixed by area: what CutMix and MixUp train on. Without mixing, plain classification."""

import torch.nn.functional as F
from torch import Tensor, nn

from labelflow.align import Output, Student
from labelflow.loss import Term
from labelflow.mix import Mix


class Plain:
    """Cross-entropy with λ·y + (1-λ)·y', λ being the area (TL-Align, Eq. 1)."""

    def student(self, model: nn.Module) -> Student:
        return Student(model)

    def __call__(self, output: Output, labels: Tensor, mix: Mix) -> list[Term]:
        return [Term("class", F.cross_entropy(output.logits.float(), mix.blend(labels)))]
