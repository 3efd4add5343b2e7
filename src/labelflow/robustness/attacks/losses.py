"""What attacks push up. Each takes logits (B, C), labels (B,) and targets (B,), and returns (B,).

Those without a target ignore it. z are the logits, sorted downwards z_π1 ≥ z_π2 ≥ …
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Objective = Callable[[Tensor, Tensor, Tensor], Tensor]


def cross_entropy(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, reduction="none")


def cross_entropy_targeted(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """log p_t: what few classes leave of a targeted loss."""
    return -F.cross_entropy(logits, targets, reduction="none")


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """max_{i≠y} z_i - z_y: above zero, the model is wrong.

    >>> margin(torch.tensor([[1.0, 4.0, 2.0]]), torch.tensor([1]))
    tensor([-2.])
    """
    own = F.one_hot(labels, logits.shape[1]).bool()
    return logits.masked_fill(own, -torch.inf).amax(1) - picked(logits, labels)


def dlr(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """-(z_y - max_{i≠y} z_i) / (z_π1 - z_π3), blind to the scale of the logits (Croce & Hein 2020, Eq. 6)."""
    if logits.shape[1] < 3:
        raise ValueError(f"the DLR loss needs at least 3 classes, not {logits.shape[1]}; use the cross-entropy")
    top = logits.topk(3).values
    return margin(logits, labels) / (top[:, 0] - top[:, 2]).clamp(min=1e-12)


def dlr_targeted(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """-(z_y - z_t) / (z_π1 - (z_π3 + z_π4) / 2) (Croce & Hein 2020, Eq. 7)."""
    if logits.shape[1] < 4:
        raise ValueError(f"the targeted DLR loss needs at least 4 classes, not {logits.shape[1]}")
    top = logits.topk(4).values
    return towards(logits, labels, targets) / (top[:, 0] - (top[:, 2] + top[:, 3]) / 2).clamp(min=1e-12)


def towards(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """z_t - z_y."""
    return picked(logits, targets) - picked(logits, labels)


def picked(logits: Tensor, classes: Tensor) -> Tensor:
    return logits.gather(1, classes[:, None])[:, 0]
