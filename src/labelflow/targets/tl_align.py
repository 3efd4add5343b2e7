"""TL-Align: labels that followed the tokens to the classifier."""

from collections.abc import Sequence

from torch import nn

from labelflow.align import Output, Student
from labelflow.loss import Term
from labelflow.mix import Mix
from labelflow.targets.base import Teaching, Truth


class TLAlign:
    """Cross-entropy with the aligned label, through which no gradient flows (Eq. 12).

    layers, residual: the ablations of Table 8, see `Aligned`.
    """

    dense = False
    teacher: Teaching = ""

    def __init__(self, layers: Sequence[int] | None = None, residual: bool = True) -> None:
        self.layers = layers
        self.residual = residual

    def student(self, model: nn.Module) -> Student:
        return Student(model, {"flow"}, self.layers, self.residual)

    def __call__(self, output: Output, truth: Truth, mix: Mix) -> list[Term]:
        assert output.flow is not None
        share = output.flow.heads[..., 0].mean(1)  # (B, heads, K) -> (B,)
        return [Term("class", truth.loss(output.logits, mix.blend(truth.classes, share)).mean())]
