"""Several mixers in turn, chosen at random for each batch or for each sample."""

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from labelflow.mix import Mix
from labelflow.mixers.base import Mixer, check_images, draw_uniform
from labelflow.mixers.mixup import NoMix


class Choose:
    """One of several mixers, with these probabilities.

    >>> from labelflow import CutMix, MixUp, NoMix
    >>> deit = Choose([MixUp(0.8), CutMix(1.0)], [0.5, 0.5])
    >>> sometimes = Choose([CutMix(1.0), NoMix()], [0.8, 0.2], per_sample=True)
    >>> mix = sometimes(torch.rand(8, 3, 224, 224), generator=torch.Generator().manual_seed(0))
    """

    def __init__(self, mixers: Sequence[Mixer], probabilities: Sequence[float], *, per_sample: bool = False) -> None:
        if not mixers or len(mixers) != len(probabilities):
            raise ValueError(
                f"Choose needs a probability for each mixer, not {len(probabilities)} for {len(mixers)} mixers"
            )
        if not (min(probabilities) >= 0 and abs(sum(probabilities) - 1) <= 1e-6):
            raise ValueError(f"probabilities must not be negative and must sum to 1, not {list(probabilities)}")
        self.mixers = list(mixers)
        self.probabilities = list(probabilities)
        self.per_sample = per_sample

    def __call__(self, images: Tensor, generator: Generator | None = None) -> Mix:
        batch, _, _ = check_images(images, generator)
        draws = draw_uniform((batch if self.per_sample else 1,), generator)
        edges = torch.tensor(self.probabilities, dtype=draws.dtype, device=draws.device).cumsum(0)[:-1]
        choice = torch.bucketize(draws, edges, right=True)  # (B,) or (1,)
        if not self.per_sample:
            return self.mixers[int(choice)](images, generator)
        mixes = [mixer(images, generator) for mixer in self.mixers]
        at = {mix.at for mix, mixer in zip(mixes, self.mixers, strict=True) if not isinstance(mixer, NoMix)}
        if len(at) > 1:
            raise ValueError("one batch can't mix pixels for some images and tokens for others; choose per batch")
        choice, sample = choice.to(images.device, non_blocking=True), torch.arange(batch, device=images.device)
        partner = torch.stack([mix.partner for mix in mixes])[choice, sample]
        share = torch.stack([mix.share for mix in mixes])[choice, sample]
        return Mix(partner, share, *at)
