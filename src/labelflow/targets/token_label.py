"""Token labeling: every patch token is trained on its own cell of a label map.

Shapes: B batch, N tokens.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from labelflow.align import Output, Student
from labelflow.loss import Term
from labelflow.mix import Mix
from labelflow.sparse import Sparse
from labelflow.targets.base import Teaching, Truth
from labelflow.tokens import token_grid


class TokenLabel:
    """H(X^cls, y^cls) + β · mean over tokens of H(Xⁱ, yⁱ) (Token Labeling, Eq. 4), labels mixed as images or tokens are
    (Eqs. 6 and 7).

    beta: weight of the tokens' part.
    image_label: y^cls, "pooled" from the view's label map, as the released models were trained, or "given" by the data,
    as it has to be where images have several labels: each of them covers a part of the view only.
    participation: part of each image's tokens that count, drawn anew every time (Figure 4, left).
    """

    dense = True
    teacher: Teaching = ""

    def __init__(
        self, beta: float = 0.5, image_label: Literal["pooled", "given"] = "pooled", participation: float = 1.0
    ) -> None:
        if image_label not in ("pooled", "given"):
            raise ValueError(f"image_label must be 'pooled' (from the label map) or 'given', not {image_label!r}")
        if not 0 < participation <= 1:
            raise ValueError(f"participation, a part of the tokens, must lie in (0, 1], not {participation}")
        if beta < 0:
            raise ValueError(f"beta, a weight, must not be negative, but is {beta}")
        self.beta, self.image_label, self.participation = beta, image_label, participation
        self.single_label = image_label == "pooled"

    def student(self, model: nn.Module) -> Student:
        return Student(model, {"tokens"})

    def __call__(self, output: Output, truth: Truth, mix: Mix) -> list[Term]:
        assert output.tokens is not None
        assert truth.dense is not None
        if self.image_label == "given":
            image = truth.loss(output.logits, mix.blend(truth.classes))
        else:
            image = truth.loss(output.logits, truth.dense.image.mixed(mix.partner, mix.lam))
        labels = mixed_cells(truth.dense.tokens, mix)
        tokens = truth.loss(output.tokens, labels)  # (B, N)
        return [Term("class", image.mean()), Term("tokens", self._taking_part(tokens).mean(), self.beta)]

    def _taking_part(self, losses: Tensor) -> Tensor:
        """The losses of a random part of each image's tokens: (B, N) -> (B, M)"""
        if self.participation == 1:
            return losses
        count = max(1, round(self.participation * losses.shape[1]))
        chosen = torch.rand(losses.shape, device=losses.device).topk(count, dim=1).indices
        return losses.gather(1, chosen)


def mixed_cells(labels: Sparse, mix: Mix) -> Sparse:
    """The labels of a mixed image's cells, from those of the images: (B, N, …), moved along where the mixer moves."""
    return labels.mixed_tokens(mix, token_grid(labels.rest.shape[1], mix.share.shape[2], mix.share.shape[3]))
