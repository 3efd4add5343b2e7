"""Mixers that need to know what is important in an image, and the guides that they ask."""

from typing import Protocol, runtime_checkable

from torch import Generator, Tensor

from labelflow.guides import Guidance, Guide, UnmixedBatch
from labelflow.mix import Mix


@runtime_checkable
class Guided(Protocol):
    """A mixer that is given the importance of each place, (B, h, w); its images are from 0 to 1."""

    guide: str  # a name in labelflow.guides.GUIDES, with arguments where wanted

    def __call__(self, images: Tensor, generator: Generator | None = None, *, importance: Tensor) -> Mix: ...


class GuidedMixer:
    """Such a mixer with its guide: `mixer(batch, generator)` gives the mix, and what the guide found."""

    def __init__(self, mixer: Guided, guide: Guide) -> None:
        self.mixer, self.guide = mixer, guide

    def __call__(self, batch: UnmixedBatch, generator: Generator | None = None) -> tuple[Mix, Guidance]:
        guidance = self.guide(batch)
        return self.mixer(batch.denormalised, generator, importance=guidance.importance), guidance
