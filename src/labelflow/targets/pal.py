"""MixPro's progressive attention labels (Zhao et al., ICLR 2023): attention counts as much as the model is right."""

import torch.nn.functional as F
from torch import Tensor, nn

from labelflow.align import Output, Student
from labelflow.loss import Term
from labelflow.mix import Mix
from labelflow.targets.base import Teaching, Truth
from labelflow.targets.transmix import last_attention


class PAL:
    """Cross-entropy with the share c·attention + (1-c)·area, where c is the cosine of the angle between the mixed label
    and softmax(logits): near 0 at first, near 1 when the model is right. The attention's share is TransMix's, a token
    counting by its area.

    detach: whether c is a plain number. In the authors' code it is not: a gradient flows through it.
    """

    dense = False
    teacher: Teaching = ""
    single_label = True

    def __init__(self, detach: bool = False) -> None:
        self.detach = detach

    def student(self, model: nn.Module) -> Student:
        return last_attention(model, "MixPro")

    def __call__(self, output: Output, truth: Truth, mix: Mix) -> list[Term]:
        share = self.share(output, truth, mix)
        return [Term("class", truth.loss(output.logits, mix.blend(truth.classes, share)).mean())]

    def share(self, output: Output, truth: Truth, mix: Mix) -> Tensor:
        """The own share of the target, (B,)."""
        assert output.flow is not None
        answer = output.logits.float().softmax(1)
        right = F.cosine_similarity(answer.detach() if self.detach else answer, mix.blend(truth.classes))  # (B,)
        return mix.lam.lerp(output.flow.heads[..., 0].mean(1), right)
