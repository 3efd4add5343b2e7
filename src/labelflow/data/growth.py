"""Image sizes that grow while a model is trained: a function of the epoch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

Part = TypeVar("Part")
Held = TypeVar("Held", covariant=True)


@dataclass(frozen=True)
class Growth:
    """The size of images in each epoch: as many stages as sizes, each of them as many epochs.

    >>> growth = Growth((160, 192, 224), epochs=9)
    >>> [growth(epoch) for epoch in range(9)]
    [160, 160, 160, 192, 192, 192, 224, 224, 224]
    """

    sizes: tuple[int, ...]  # a size that comes twice lasts twice as long
    epochs: int  # of the whole run

    def __post_init__(self) -> None:
        if min(self.sizes) < 1:
            raise ValueError(f"--sizes, in pixels, must be at least 1, not {min(self.sizes)}")
        if len(self.sizes) > self.epochs:
            raise ValueError(
                f"{len(self.sizes)} --sizes need as many epochs at least, and the run has {self.epochs}: name fewer, "
                "or train for longer"
            )

    def __call__(self, epoch: int) -> int:
        return self.sizes[min(epoch * len(self.sizes) // self.epochs, len(self.sizes) - 1)]


@dataclass(frozen=True)
class BySize(Generic[Held]):
    """What makes the views of each epoch, where their size grows."""

    growth: Growth
    parts: Mapping[int, Held]  # one for each size


def at_epoch(part: Part | BySize[Part], epoch: int) -> Part:
    return part.parts[part.growth(epoch)] if isinstance(part, BySize) else part
