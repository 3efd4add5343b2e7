"""SMMix (Chen et al., ICCV 2023): each region is trained on its own image's label, the whole on what the model itself
says of both.

Shapes: B batch, C classes, N tokens.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from labelflow.align import Output, Student
from labelflow.loss import Loss, Term
from labelflow.mix import Mix
from labelflow.targets.base import Teaching, Truth
from labelflow.tokens import token_grid


class SMMixTarget:
    """Three terms: cross-entropy with the label mixed by area; for the mean token of each of both regions, half of the
    cross-entropy with its image's label; and KL(softmax(λp + (1-λ)p_partner) ‖ softmax(out)), where p are the model's
    logits for the unmixed images.

    Tokens have a linear head of their own, so that the mean of their logits is the mean token's. Where the mixer's
    guide did not ask the model for p (MixUp, say), the first term alone counts, and the others are 0.
    """

    dense = False
    teacher: Teaching = ""
    single_label = True

    def student(self, model: nn.Module) -> Student:
        return Student(model, {"tokens"})

    def __call__(self, output: Output, truth: Truth, mix: Mix) -> list[Term]:
        assert output.tokens is not None
        logits = output.logits.float()
        image = Term("class", truth.loss(logits, mix.blend(truth.classes)).mean())
        if truth.clean is None:
            nothing = output.tokens[:0].float().sum()  # 0 that knows of the tokens: every parameter has a gradient
            return [image, Term("regions", nothing), Term("consistency", nothing)]
        grid = token_grid(output.tokens.shape[1], mix.share.shape[2], mix.share.shape[3])
        share = mix.tokens(grid).flatten(1)
        shares, labels = (share, 1 - share), mix.pair(truth.classes)
        own, pasted = (region_loss(output.tokens, *one, truth.loss) for one in zip(shares, labels, strict=True))
        answer = mix.blend(truth.clean.detach().float()).log_softmax(1)
        consistency = F.kl_div(logits.log_softmax(1), answer, reduction="batchmean", log_target=True)
        return [image, Term("regions", (own + pasted) / 2), Term("consistency", consistency)]


def region_loss(tokens: Tensor, weights: Tensor, labels: Tensor, loss: Loss) -> Tensor:
    """The loss of the weighted mean of tokens' logits (B, N, C) with labels (B, C), mean over images. An image
    whose weights (B, N) are all 0 adds nothing."""
    weights = weights.unsqueeze(1)  # (B, 1, N)
    total = weights.sum(2)  # (B, 1)
    mean = (weights @ tokens.float()).squeeze(1) / total.where(total > 0, 1)
    return (loss(mean, labels) * (total.squeeze(1) > 0)).mean()
