"""What tells a mixer where the important parts of an image are.

Shapes: B batch, C classes, H×W pixels, h×w any map.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from labelflow.align import Student
from labelflow.loss import Loss


class UnmixedBatch(NamedTuple):
    """A batch before it is mixed, and the model that is trained."""

    images: Tensor  # (B, 3, H, W), normalised
    classes: Tensor  # (B, C): soft labels
    student: Student
    mean: tuple[float, ...]  # of the colour channels, with which the images were normalised
    std: tuple[float, ...]
    loss: Loss = Loss()  # that it is trained with
    earlier: Tensor | None = None  # (B, 3, H, W): the mixed images of the batch before, for mixers that paste them

    @property
    def denormalised(self) -> Tensor:
        """The images without mean and std, (B, 3, H, W) in [0, 1]."""
        mean, std = (per_channel(values, self.images) for values in (self.mean, self.std))
        return (self.images.detach() * std + mean).clamp(0, 1)


class Guidance(NamedTuple):
    """What a guide found in the unmixed images."""

    importance: Tensor  # (B, h, w), ≥ 0, without a gradient
    logits: Tensor | None = None  # (B, C): the model's, where the guide ran it


class Guide(Protocol):
    parameters: int  # of a model that it runs beside the one that is trained

    def __call__(self, batch: UnmixedBatch) -> Guidance: ...


def per_channel(values: Sequence[float], like: Tensor) -> Tensor:
    """(C, 1, 1), where the images are, and of their dtype; the host does not wait for the device."""
    return torch.tensor(values, dtype=like.dtype).to(like.device, non_blocking=True).reshape(-1, 1, 1)
