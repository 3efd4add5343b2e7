"""TokenMix (Liu et al., ECCV 2022): each image counts as much as a trained model sees its class in what is shown of it.

Shapes: B batch, C classes, N tokens on a grid h×w.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from labelflow.align import Output, Student
from labelflow.loss import Term
from labelflow.mix import Mix
from labelflow.sparse import TokenLabels
from labelflow.targets.base import Teaching, Truth
from labelflow.tokens import token_grid


class TokenMixTarget:
    """Binary cross-entropy, mean over images and classes, with y = y_own·ΣA₁(1-m) + y_partner·ΣA₂m.

    A is the dense label of an image's own class, with a sum of 1 over its tokens; m is 1 where the partner shows. The
    two weights need not sum to 1. Label smoothing is no content, and is not weighted: half of it comes from each image.
    So with maps A that are the same everywhere, or with MixUp, y is the plain label, mixed by area. Where both images
    are of one class y is held at 1, beyond which binary cross-entropy has no minimum.
    """

    dense = True
    teacher: Teaching = ""
    single_label = True

    def student(self, model: nn.Module) -> Student:
        return Student(model)

    def __call__(self, output: Output, truth: Truth, mix: Mix) -> list[Term]:
        assert truth.dense is not None
        if not truth.loss.is_plain:
            raise ValueError("token_mix has a loss of its own, without class weights and logit adjustment: --loss ce")
        rest = truth.classes.amin(1, keepdim=True)  # what smoothing gave to every class, of images and tokens alike
        shares = shown(class_map(truth.dense, truth.classes.argmax(1), rest), mix)  # (B,) each
        parts = zip(shares, mix.pair(truth.classes - rest), mix.pair(rest), strict=True)
        own, pasted = (share.unsqueeze(1) * above + rest / 2 for share, above, rest in parts)
        labels = own + pasted
        loss = F.binary_cross_entropy_with_logits(output.logits.float(), labels.clamp(max=1))
        return [Term("class", loss)]


def class_map(dense: TokenLabels, classes: Tensor, smoothing: Tensor) -> Tensor:
    """Where each image's class (B,) is, by its dense labels without smoothing (B, 1): (B, N), of sum 1."""
    labels = dense.tokens
    found = labels.rest + (labels.above * (labels.classes == classes.reshape(-1, 1, 1))).sum(-1)  # (B, N)
    found = (found - smoothing).clamp(min=0)
    total = found.sum(1, keepdim=True)
    return (found / total).where(total > 0, 1 / found.shape[1])


def shown(maps: Tensor, mix: Mix) -> tuple[Tensor, Tensor]:
    """How much of the own image's map, and of its partner's, the mixed image shows: (B, N) -> (B,), (B,)"""
    grid = token_grid(maps.shape[1], mix.share.shape[2], mix.share.shape[3])
    own, pasted = mix.move(maps.unsqueeze(-1), grid)  # (B, N, 1) each
    share = mix.tokens(grid).flatten(1)
    return (own.squeeze(-1) * share).sum(1), (pasted.squeeze(-1) * (1 - share)).sum(1)
