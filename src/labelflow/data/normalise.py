"""From bytes to the colours that a model takes, on the device that has the images."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor


@dataclass(frozen=True)
class Normalise:
    """(x / 255 - mean) / std, channel by channel, with torchvision's bits.

    >>> Normalise((0.5,) * 3, (0.25,) * 3)(torch.tensor([0, 51, 255], dtype=torch.uint8).view(3, 1, 1)).flatten()
    tensor([-2.0000, -1.2000,  2.0000])
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def mean_colour(self) -> tuple[int, ...]:
        """In bytes: what timm's moves leave behind."""
        return tuple(min(255, round(255 * value)) for value in self.mean)

    def __call__(self, pixels: Tensor) -> Tensor:
        """(..., 3, H, W) uint8 -> float32"""
        white, mean, std = _constants(self, pixels.device)
        return (pixels / white).sub_(mean).div_(std)


@cache
def _constants(colours: Normalise, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Made once for a device; the host waits for them, so that they are there for every stream. White is a tensor as
    well: by a plain number GPUs do not divide, they multiply with its reciprocal, which changes the last bit."""
    mean, std = (torch.tensor(values, device=device).view(-1, 1, 1) for values in (colours.mean, colours.std))
    return torch.tensor(255.0, device=device), mean, std
