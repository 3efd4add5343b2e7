"""Token labels that flow: every output token is trained on what flowed into it. Beyond both papers.

Token labeling takes it that an output token still is the patch at its place. TL-Align shows that attention moves
content between tokens. Here the dense labels of a (mixed) image's cells move with the tokens, layer by layer, and each
output token, and the classifier, is trained on the labels that arrive.

Shapes: B batch, N tokens, K cells, V classes of an image.
"""

import torch
from torch import Tensor, nn

from labelflow.align import Output, Student
from labelflow.loss import Term
from labelflow.mix import Mix
from labelflow.sparse import Sparse
from labelflow.targets.base import Teaching, Truth
from labelflow.targets.token_label import mixed_cells


class TokenLabelAligned:
    """H(X^cls, ŷ^cls) + β · mean over tokens of H(Xⁱ, ŷⁱ), where ŷⁱ = Σⱼ Rᵢⱼ·yʲ and R is the flow (TL-Align, Eq. 11).

    The sources that flow are the image's cells, not its classes: R holds for any labels of these cells.
    """

    dense = True
    teacher: Teaching = ""

    def __init__(self, beta: float = 0.5) -> None:
        if beta < 0:
            raise ValueError(f"beta, a weight, must not be negative, but is {beta}")
        self.beta = beta

    def student(self, model: nn.Module) -> Student:
        return Student(model, {"tokens", "cells"})

    def __call__(self, output: Output, truth: Truth, mix: Mix) -> list[Term]:
        assert output.tokens is not None
        assert output.flow is not None
        assert output.flow.tokens is not None
        cells = cell_labels(truth, mix)
        image = truth.loss(output.logits, _take(cells, output.flow.heads.mean(1, keepdim=True), 0))
        tokens = truth.loss(output.tokens, _take(cells, output.flow.tokens))
        return [Term("class", image.mean()), Term("tokens", tokens.mean(), self.beta)]


def cell_labels(truth: Truth, mix: Mix) -> Sparse:
    """The labels of a mixed image's cells, over the classes of both images: above (B, K, 2V), classes (B, 1, 2V)."""
    assert truth.dense is not None
    return mixed_cells(truth.dense.tokens, mix)


def _take(cells: Sparse, flow: Tensor, row: int | None = None) -> Sparse:
    """What arrives of the cells' labels: flow (B, N, K) -> above (B, N, 2V); of one row alone, above (B, 2V)."""
    above = torch.bmm(flow, cells.above)
    arrived = Sparse(cells.classes, above, torch.bmm(flow, cells.rest.unsqueeze(-1))[..., 0])
    return arrived if row is None else Sparse(*(part[:, row] for part in arrived))
