"""Several mixers in turn, chosen at random for each batch or for each sample."""

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from labelflow.mix import Mix
from labelflow.mixers import MIXERS
from labelflow.mixers.base import Guided, Mixer, check_images, draw_uniform
from labelflow.mixers.mixup import NoMix
from labelflow.spec import build, mixture


class Choose:
    """One of several mixers, with these probabilities.

    >>> from labelflow import CutMix, MixUp, NoMix
    >>> deit = Choose([MixUp(0.8), CutMix(1.0)], [0.5, 0.5])
    >>> sometimes = Choose([CutMix(1.0), NoMix()], [0.8, 0.2], per_sample=True)
    >>> mix = sometimes(torch.rand(8, 3, 224, 224), generator=torch.Generator().manual_seed(0))
    """

    def __init__(
        self, mixers: Sequence[Mixer | Guided], probabilities: Sequence[float], *, per_sample: bool = False
    ) -> None:
        if not mixers or len(mixers) != len(probabilities):
            raise ValueError(
                f"Choose needs a probability for each mixer, not {len(probabilities)} for {len(mixers)} mixers"
            )
        if not (min(probabilities) >= 0 and abs(sum(probabilities) - 1) <= 1e-6):
            raise ValueError(f"probabilities must not be negative and must sum to 1, not {list(probabilities)}")
        if per_sample and any(isinstance(mixer, Guided) for mixer in mixers):
            raise ValueError("a mixer that is shown what matters first can't be chosen per sample; choose per batch")
        self.mixers = list(mixers)
        self.probabilities = list(probabilities)
        self.per_sample = per_sample

    def pick(self, generator: Generator | None = None) -> Mixer | Guided:
        """The mixer of a batch; for a choice per sample, this one."""
        return self if self.per_sample else self.mixers[int(self._draw(1, generator))]

    def __call__(self, images: Tensor, generator: Generator | None = None) -> Mix:
        batch, _, _ = check_images(images, generator)
        if not self.per_sample:
            mixer = self.pick(generator)
            if isinstance(mixer, Guided):
                raise ValueError(
                    f"{type(mixer).__name__} needs importance: call pick(generator), and then what it picks"
                )
            return mixer(images, generator)
        choice = self._draw(batch, generator)
        mixes = [mixer(images, generator) for mixer in self.mixers if not isinstance(mixer, Guided)]  # which has none
        at = {mix.at for mix, mixer in zip(mixes, self.mixers, strict=True) if not isinstance(mixer, NoMix)}
        if len(at) > 1:
            raise ValueError("one batch can't mix pixels for some images and tokens for others; choose per batch")
        choice, sample = choice.to(images.device, non_blocking=True), torch.arange(batch, device=images.device)
        partner = torch.stack([mix.partner for mix in mixes])[choice, sample]
        share = torch.stack([mix.share for mix in mixes])[choice, sample]
        return Mix(partner, share, "tokens" if "tokens" in at else "image")

    def _draw(self, count: int, generator: Generator | None) -> Tensor:
        """Places in the list of mixers, (count,)"""
        draws = draw_uniform((count,), generator)
        edges = torch.tensor(self.probabilities, dtype=draws.dtype, device=draws.device).cumsum(0)[:-1]
        return torch.bucketize(draws, edges, right=True)


def make_mixer(text: str) -> Mixer | Guided:
    """`cutmix(alpha=1.0)`, or several in turn: `0.5*mixup + 0.5*cutmix`."""
    parts = [(weight, build(name, MIXERS, "mixer")) for weight, name in mixture(text)]
    if len(parts) == 1 and parts[0][0] == 1:
        return parts[0][1]
    return Choose([mixer for _, mixer in parts], [weight for weight, _ in parts])
