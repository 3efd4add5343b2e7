"""The points that an attack may choose from: near the clean image, and images themselves.

B batch; images are (B, channels, height, width) in [0, 1].
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

NORMS = "linf", "l2"


@dataclass(frozen=True)
class Ball:
    """All images within a radius of the clean one, in the norm `linf` or `l2`.

    >>> Ball("linf", 8 / 255).project(torch.ones(1, 3, 2, 2), torch.zeros(1, 3, 2, 2)).max().mul(255).item()
    8.0
    """

    norm: str
    radius: float

    def __post_init__(self) -> None:
        if self.norm not in NORMS:
            raise ValueError(f"there is no norm {self.norm!r}; there are {' and '.join(NORMS)}")
        if not 0 < self.radius < float("inf"):
            raise ValueError(f"the radius must be above 0, such as 4/255, not {self.radius}")

    def length(self, move: Tensor) -> Tensor:
        """(B, ...) -> (B,): how long each move is in this norm."""
        flat = move.flatten(1)
        return flat.abs().amax(1) if self.norm == "linf" else flat.norm(dim=1)

    def distance(self, moved: Tensor, clean: Tensor) -> Tensor:
        """(B,): how far each image has gone."""
        return self.length(moved - clean)

    def project(self, moved: Tensor, clean: Tensor) -> Tensor:
        """Into the ball, then into [0, 1]: clean images are there, so this only shortens the way to them."""
        move = moved - clean
        if self.norm == "linf":
            move = move.clamp(-self.radius, self.radius)
        else:
            move = move * (self.radius / wide(self.length(move)).clamp(min=self.radius))
        return (clean + move).clamp(0, 1)

    def steepest(self, gradient: Tensor) -> Tensor:
        """The move of length 1 along which a function with this gradient rises most; none where it is flat."""
        if self.norm == "linf":
            return gradient.sign()
        largest = wide(gradient.flatten(1).abs().amax(1)).clamp(min=torch.finfo(gradient.dtype).tiny)
        scaled = gradient / largest  # squares of very small numbers would vanish
        return scaled / wide(self.length(scaled)).clamp(min=1e-12)

    def sample(self, clean: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """A point drawn uniformly from the ball around each image, then brought into [0, 1]."""
        moves = [self._move(clean.shape[1:], generator) for generator in generators]
        return self.project(clean + torch.stack(moves).to(clean), clean)

    def _move(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        if self.norm == "linf":
            return (torch.rand(shape, generator=generator) * 2 - 1) * self.radius
        direction = torch.randn(shape, generator=generator)
        depth = torch.rand(1, generator=generator) ** (1 / direction.numel())
        return direction / direction.norm() * depth * self.radius


def wide(values: Tensor) -> Tensor:
    """(B,) -> (B, 1, 1, 1), one value for each image."""
    return values[:, None, None, None]
