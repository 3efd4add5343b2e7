"""What a loss is made of: named terms, and soft labels to compare with."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


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
