"""Distillation: a trained model, the teacher, says what it makes of the same mixed images, and the student learns that.

Shapes: B batch, C classes, D features.
"""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from labelflow.align import Output, Student
from labelflow.loss import Term
from labelflow.mix import Mix
from labelflow.spec import build
from labelflow.targets import TARGETS
from labelflow.targets.base import Target, Teaching, Truth

Kind = Literal["soft", "hard", "features"]


class Distill:
    """(1-α)·the terms of another target + α·the distance to the teacher.

    kind: "soft", τ²·KL(softmax(teacher/τ) ‖ softmax(student/τ)), mean over images (Hinton et al., 2015; as timm has it,
    C times what DeiT's code has), and of images with several labels τ² times the binary cross-entropy with
    σ(teacher/τ), mean over images and classes; "hard", cross-entropy with the teacher's likeliest class (DeiT, Eq. 3),
    where images have one; "features", the mean squared distance of what the classifiers see, after a linear layer where
    the widths differ (timm's).
    A model with a distillation token learns from the teacher by that token's logits, and from labels by the class
    token's; any other one by the same logits. tau: temperature, of "soft" alone.
    target: the other one, such as 'tl_align', so that labels that are aligned and a teacher go together.
    """

    dense = False  # unless the other target's are
    teacher: Teaching = "logits"
    single_label = False  # unless the teacher's likeliest class is wanted, or the other target is

    def __init__(self, kind: Kind = "soft", alpha: float = 0.5, tau: float = 1.0, target: str = "plain") -> None:
        if kind not in ("soft", "hard", "features"):
            raise ValueError(f"kind must be 'soft', 'hard' or 'features', not {kind!r}")
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha, the teacher's part of the loss, must lie in [0, 1], not {alpha}")
        if tau <= 0:
            raise ValueError(f"tau, a temperature, must be positive, not {tau}")
        self.kind, self.alpha, self.tau = kind, alpha, tau
        self.target: Target = build(target, TARGETS, "target")
        if self.target.teacher:
            raise ValueError(f"the target {target} has a teacher already; it cannot be that of another distill")
        self.dense = self.target.dense
        self.single_label = kind == "hard" or getattr(self.target, "single_label", False)
        self.teacher = "features" if kind == "features" else "logits"

    def student(self, model: nn.Module) -> Student:
        return self.target.student(model).add("features" if self.kind == "features" else "distillation")

    def __call__(self, output: Output, truth: Truth, mix: Mix) -> list[Term]:
        own = [term._replace(weight=(1 - self.alpha) * term.weight) for term in self.target(output, truth, mix)]
        return [*own, Term("teacher", self.distance(output, truth), self.alpha)]

    def distance(self, output: Output, truth: Truth) -> Tensor:
        """To the teacher, mean over images."""
        assert truth.taught is not None
        if self.kind == "features":
            assert output.features is not None
            assert truth.taught.features is not None
            return feature_distance(output.features, truth.taught.features)
        assert truth.taught.logits is not None
        logits = (output.logits if output.distilled is None else output.distilled).float()
        if self.kind == "hard":
            return F.cross_entropy(logits, truth.taught.logits.argmax(1))
        ours, theirs = (one.float() / self.tau for one in (logits, truth.taught.logits))
        if truth.taught.several:
            return self.tau**2 * F.binary_cross_entropy_with_logits(ours, theirs.sigmoid())
        ours, theirs = ours.log_softmax(1), theirs.log_softmax(1)
        return self.tau**2 * F.kl_div(ours, theirs, reduction="batchmean", log_target=True)


def feature_distance(features: Tensor, taught: Tensor) -> Tensor:
    """The mean squared difference, over images and channels: (B, D) each"""
    if features.shape != taught.shape:
        width = taught.shape[1]
        raise ValueError(
            f"the student's features are {features.shape[1]} wide, the teacher's {width}: student.project({width})"
        )
    return F.mse_loss(features.float(), taught.float())
