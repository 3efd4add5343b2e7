"""TransMix (Chen et al., CVPR 2022): λ from where the last block's class token looks."""

from typing import Literal

from torch import Tensor, nn

from labelflow.align import Output, Student
from labelflow.follow import Flow
from labelflow.loss import Term
from labelflow.mix import Mix
from labelflow.targets.base import Teaching, Truth


class TransMix:
    """Cross-entropy with the mean of two shares: the area, and what the last attention shows the class token.

    It is one step of label flow: the last layer only, no residual, and a class token that has no label of its own.
    Where a model pools its tokens instead, the mean over them is taken.

    mask: a token counts as what its "first_pixel" shows, as the authors have it, or by its "area". Both are the same
    where boxes lie on the patch grid.
    """

    dense = False
    teacher: Teaching = ""

    def __init__(self, mask: Literal["first_pixel", "area"] = "first_pixel") -> None:
        if mask not in ("first_pixel", "area"):
            raise ValueError(f"mask must be 'first_pixel' or 'area', not {mask!r}")
        self.mask = mask

    def student(self, model: nn.Module) -> Student:
        return last_attention(model, "TransMix", first_pixel=self.mask == "first_pixel")

    def __call__(self, output: Output, truth: Truth, mix: Mix) -> list[Term]:
        assert output.flow is not None
        share = self.share(output.flow, mix)
        return [Term("class", truth.loss(output.logits, mix.blend(truth.classes, share)).mean())]

    def share(self, flow: Flow, mix: Mix) -> Tensor:
        """The own share of the target, (B,)."""
        return (mix.lam + flow.heads[..., 0].mean(1)) / 2  # (B, heads, K) -> (B,)


def last_attention(model: nn.Module, method: str, first_pixel: bool = False) -> Student:
    """A model that tells, for that method, what its last attention shows the class token of both images."""
    student = Student(model, {"flow"}, layers=[-1], residual=False, label_prefix=False, first_pixel=first_pixel)
    assert student.follower is not None
    student.follower.require_attention(f"{method}, in the last block,", "--target tl_align")
    return student
