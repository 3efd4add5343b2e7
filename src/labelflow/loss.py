"""What a loss is made of: named terms, soft labels, and what compares logits with them.

Shapes: B batch, C classes; ... stands for samples (B,) or tokens (B, N).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from labelflow.sparse import Sparse, sparse_cross_entropy
from labelflow.spec import build


class Term(NamedTuple):
    """One part of a loss, with the name under which it is logged."""

    name: str
    value: Tensor  # scalar
    weight: float = 1.0


def total(terms: Iterable[Term]) -> Tensor:
    """The loss: the weighted sum of its terms.

    >>> total([Term("class", torch.tensor(2.0)), Term("tokens", torch.tensor(1.0), weight=0.5)])
    tensor(2.5000)
    """
    terms = list(terms)
    if not terms:
        raise ValueError("a loss needs at least one term")
    return torch.stack([term.weight * term.value for term in terms]).sum()


def soft_labels(labels: Tensor, num_classes: int, smoothing: float = 0.0) -> Tensor:
    """Class ids (B,), or multi-hot or soft targets (B, C), as smoothed float targets (B, C): (1-s)·y + s/C.

    Smoothing is linear, so it makes no difference whether labels are smoothed before or after they are blended.

    >>> soft_labels(torch.tensor([2, 0]), num_classes=4, smoothing=0.1)
    tensor([[0.0250, 0.0250, 0.9250, 0.0250],
            [0.9250, 0.0250, 0.0250, 0.0250]])
    """
    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing must lie in [0, 1), not {smoothing}")
    if labels.ndim == 1:
        if labels.is_floating_point():
            raise ValueError(f"class ids must be whole numbers, not {labels.dtype}")
        labels = F.one_hot(labels.long(), num_classes)
    if labels.ndim != 2 or labels.shape[1] != num_classes:
        raise ValueError(f"labels must be class ids (B,) or targets (B, {num_classes}), not {tuple(labels.shape)}")
    return labels.float() * (1 - smoothing) + smoothing / num_classes


class Costs(Protocol):
    """What a loss asks for a class: Σ_c y_c·present_c + (1-y_c)·absent_c is the loss with the label y."""

    def __call__(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Costs (..., C) of a class that is there, and of one that is not (None: nothing)."""
        ...


@dataclass(frozen=True)
class CrossEntropy:
    """-log softmax(z)_c for the class that is there; what is not there costs nothing."""

    def __call__(self, logits: Tensor) -> tuple[Tensor, None]:
        return -logits.log_softmax(-1), None


@dataclass(frozen=True)
class BinaryCrossEntropy:
    """Every class for itself: -log σ(z)_c if it is there, -log(1 - σ(z)_c) if not; the mean over classes.

    threshold: labels above it count as 1, all others as 0. At 0, mixed images are labelled with both classes in full
    (DeiT III), so that λ makes no difference, nor does an aligned share. None: labels as they are.
    sum_classes: the sum over classes instead of their mean.
    """

    threshold: float | None = None
    sum_classes: bool = False

    def __post_init__(self) -> None:
        if self.threshold is not None and not 0 <= self.threshold < 1:
            raise ValueError(f"threshold, of labels, must lie in [0, 1), not {self.threshold}")

    def __call__(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        scale = 1 if self.sum_classes else logits.shape[-1]
        return F.softplus(-logits) / scale, F.softplus(logits) / scale


@dataclass(frozen=True)
class Asymmetric:
    """ASL (Ridnik et al., ICCV 2021), for several labels an image: easy negatives count little, or nothing. With
    p = σ(z) and q = min(1 - p + clip, 1): -(1-p)^γ₊·log p if a class is there, -(1-q)^γ₋·log q if not; the sum over
    classes. A label between 0 and 1, of a mixed image, is the mean of both.
    """

    gamma_neg: float = 4.0
    gamma_pos: float = 1.0
    clip: float = 0.05

    def __post_init__(self) -> None:
        if min(self.gamma_neg, self.gamma_pos) < 0 or not 0 <= self.clip < 1:
            raise ValueError(
                f"gamma_neg and gamma_pos must be ≥ 0 and clip must lie in [0, 1), not {self.gamma_neg}, "
                f"{self.gamma_pos} and {self.clip}"
            )

    def __call__(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        present = logits.sigmoid()
        absent = (1 - present + self.clip).clamp(max=1)
        return _focal(present, self.gamma_pos), _focal(absent, self.gamma_neg)


def _focal(probability: Tensor, gamma: float) -> Tensor:
    """-(1-p)^γ·log p, with finite gradients at both ends"""
    focus = (1 - probability).clamp(min=1e-8) ** gamma if gamma else 1.0
    return -focus * probability.clamp(min=1e-8).log()


LOSSES = {"ce": CrossEntropy, "bce": BinaryCrossEntropy, "asl": Asymmetric}


@dataclass(frozen=True, eq=False)
class Loss:
    """Compares logits (..., C) with soft labels (..., C) or sparse ones: one number a sample or token, (...).

    weights (C,) multiply each class's part of a label, -Σ_c w_c·y_c·log p_c, so that of share·a + (1-share)·b the part
    of a counts w_a times and that of b w_b times; what is not there counts as ever (torch's `pos_weight`).
    log_prior (C,) is added to the logits (logit adjustment).

    >>> logits, labels = torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([[0.5, 0.5, 0.0]])
    >>> Loss()(logits, labels)
    tensor([1.2395])
    >>> make_loss("bce(threshold=0)")(logits, labels)  # both classes are there, the third is not
    tensor([0.5044])
    """

    costs: Costs = field(default_factory=CrossEntropy)
    weights: Tensor | None = None
    log_prior: Tensor | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it is cross-entropy and nothing else."""
        return isinstance(self.costs, CrossEntropy) and self.weights is None and self.log_prior is None

    def __call__(self, logits: Tensor, labels: Tensor | Sparse) -> Tensor:
        if self.log_prior is not None:
            logits = logits.float() + _beside(self.log_prior, logits)
        if isinstance(self.costs, CrossEntropy) and self.weights is None and isinstance(labels, Sparse):
            return sparse_cross_entropy(logits, labels)  # the same, with less memory
        logits = logits.float()
        if isinstance(self.costs, BinaryCrossEntropy) and self.costs.threshold is not None:
            labels = labels.dense(logits.shape[-1]) if isinstance(labels, Sparse) else labels
            labels = (labels > self.costs.threshold).float()
        present, absent = self.costs(logits)
        if self.weights is not None:
            present = present * _beside(self.weights, logits)
        if absent is None:
            return _inner(labels, present)
        return absent.sum(-1) + _inner(labels, present - absent)


def make_loss(text: str, weights: Tensor | None = None, log_prior: Tensor | None = None) -> Loss:
    """`ce`, `bce`, `bce(threshold=0)`, `asl(gamma_neg=4)`, …"""
    costs = build(text, LOSSES, "loss")
    if log_prior is not None and not isinstance(costs, CrossEntropy):
        raise ValueError(f"logit adjustment is for classes that exclude one another: --loss ce, not {text}")
    return Loss(costs, weights, log_prior)


def _inner(labels: Tensor | Sparse, costs: Tensor) -> Tensor:
    """Σ_c y_c·cost_c: (...)"""
    if not isinstance(labels, Sparse):
        return (labels * costs).sum(-1)
    named = costs.gather(-1, labels.classes.long().expand_as(labels.above))
    return labels.rest * costs.sum(-1) + (labels.above * named).sum(-1)


def _beside(values: Tensor, like: Tensor) -> Tensor:
    """Where others are; the host does not wait for the device."""
    return values.to(like.device, non_blocking=True)
