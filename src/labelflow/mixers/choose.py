"""Several mixers, one of which is drawn for each batch, pair or sample; and a batch mixed by any mixer."""

from collections.abc import Sequence
from functools import cache

import torch
from torch import Generator, Tensor
from torch.distributed.tensor import DTensor

from labelflow.guides import GUIDES, Guidance, UnmixedBatch
from labelflow.mix import Mix
from labelflow.mixers import MIXERS
from labelflow.mixers.base import Mixer, Per, Remembering, check_images, check_per, draw_uniform, draws, spread
from labelflow.mixers.guided import Guided, GuidedMixer
from labelflow.mixers.mixup import NoMix
from labelflow.spec import build, mixture

AnyMixer = Mixer | Guided | GuidedMixer | Remembering
NEED_IMPORTANCE = (Guided, GuidedMixer)
NEED_MORE = (*NEED_IMPORTANCE, Remembering)  # than images


class Choose:
    """One of several mixers, with these probabilities.

    per: one choice for the "batch", for each "pair" (first image with last), or for each "sample". What the mixers draw
    is theirs to say.

    >>> from labelflow import CutMix, MixUp, NoMix
    >>> deit = Choose([MixUp(0.8), CutMix(1.0)], [0.5, 0.5])
    >>> sometimes = Choose([CutMix(1.0), NoMix()], [0.8, 0.2], per="sample")
    >>> mix = sometimes(torch.rand(8, 3, 224, 224), generator=torch.Generator().manual_seed(0))
    """

    def __init__(self, mixers: Sequence[AnyMixer], probabilities: Sequence[float], *, per: Per = "batch") -> None:
        if not mixers or len(mixers) != len(probabilities):
            raise ValueError(
                f"Choose needs a probability for each mixer, not {len(probabilities)} for {len(mixers)} mixers"
            )
        if not (min(probabilities) >= 0 and abs(sum(probabilities) - 1) <= 1e-6):
            raise ValueError(f"probabilities must not be negative and must sum to 1, not {list(probabilities)}")
        if per != "batch" and any(isinstance(mixer, NEED_MORE) for mixer in mixers):
            raise ValueError(
                f"a mixer that needs importance, or an earlier batch, can't be chosen per {per}; choose per batch"
            )
        self.mixers = list(mixers)
        self.probabilities = list(probabilities)
        self.per = check_per(per)

    def pick(self, generator: Generator | None = None) -> AnyMixer:
        """The mixer of a batch; for a choice per pair or sample, this one."""
        return self.mixers[int(self._draw(1, generator))] if self.per == "batch" else self

    def __call__(self, images: Tensor, generator: Generator | None = None) -> Mix:
        batch, _, _ = check_images(images, generator)
        if self.per == "batch":
            mixer = self.pick(generator)
            if isinstance(mixer, NEED_MORE):
                what = "an earlier batch" if isinstance(mixer, Remembering) else "importance"
                raise ValueError(
                    f"{type(mixer).__name__} needs {what}: use mix_batch, or call what pick(generator) returns"
                )
            return mixer(images, generator)
        choice = spread(self._draw(draws(self.per, batch), generator), batch)
        mixes = [mixer(images, generator) for mixer in self.mixers if not isinstance(mixer, NEED_MORE)]
        at = {mix.at for mix, mixer in zip(mixes, self.mixers, strict=True) if not isinstance(mixer, NoMix)}
        if len(at) > 1:
            raise ValueError("one batch can't mix pixels for some images and tokens for others; choose per batch")
        choice, sample = choice.to(images.device, non_blocking=True), torch.arange(batch, device=images.device)
        partner = torch.stack([mix.partner for mix in mixes])[choice, sample]
        share = torch.stack([mix.share for mix in mixes])[choice, sample]
        drawn = None
        if any(mix.drawn is not None for mix in mixes):
            drawn = torch.stack([mix.lam for mix in mixes])[choice, sample]
        box = None
        if any(mix.box is not None for mix in mixes):
            whole = torch.tensor([0, 0, *images.shape[2:]]).to(images.device, non_blocking=True)  # nothing is resized
            boxes = [whole.expand(batch, 4) if mix.box is None else mix.box for mix in mixes]
            box = torch.stack(boxes)[choice, sample]
        return Mix(partner, share, "tokens" if "tokens" in at else "image", drawn=drawn, box=box)

    def _draw(self, count: int, generator: Generator | None) -> Tensor:
        """Places in the list of mixers, (count,)"""
        draws = draw_uniform((count,), generator)
        edges = torch.tensor(self.probabilities, dtype=draws.dtype, device=draws.device).cumsum(0)[:-1]
        return torch.bucketize(draws, edges, right=True)


def make_mixer(text: str) -> Mixer | GuidedMixer:
    """`cutmix(alpha=1.0)`, or a mixture: `0.5*mixup + 0.5*cutmix`. Guided mixers come with their guides; those
    that name the same one share it."""
    make_guide = cache(lambda name: build(name, GUIDES, "guide"))

    def make(name: str) -> Mixer | GuidedMixer:
        mixer = build(name, MIXERS, "mixer")
        return GuidedMixer(mixer, make_guide(mixer.guide)) if isinstance(mixer, Guided) else mixer

    parts = [(weight, make(name)) for weight, name in mixture(text)]
    if len(parts) == 1 and parts[0][0] == 1:
        return parts[0][1]
    return Choose([mixer for _, mixer in parts], [weight for weight, _ in parts])


def mix_batch(mixer: AnyMixer, batch: UnmixedBatch, generator: Generator | None = None) -> tuple[Mix, Guidance | None]:
    """How a batch is mixed, and what the guide found, if there is one. mixer: what `make_mixer` makes; of a
    mixture, one is drawn, and only its guide is called."""
    if isinstance(mixer, Choose):
        guided = any(isinstance(one, GuidedMixer) for one in mixer.mixers)
        if guided and any(isinstance(weight, DTensor) for weight in batch.student.parameters()):
            raise ValueError("with FSDP, a guided mixer cannot be part of a mixture: use it alone")
        mixer = mixer.pick(generator)
    if isinstance(mixer, GuidedMixer):
        return mixer(batch, generator)
    if isinstance(mixer, Guided):
        raise ValueError(f"{type(mixer).__name__} has no guide: make it with make_mixer, or call it with importance")
    if isinstance(mixer, Remembering):
        return mixer(batch.images, generator, earlier=batch.earlier), None
    return mixer(batch.images, generator), None


def remembers(mixer: AnyMixer) -> bool:
    """Whether it, or one of a mixture, pastes what the batch before was mixed into."""
    mixers = mixer.mixers if isinstance(mixer, Choose) else [mixer]
    return any(isinstance(one, Remembering) for one in mixers)


def guide_parameters(mixer: AnyMixer) -> int:
    """Parameters of the models that guides run beside the one that is trained."""
    mixers = mixer.mixers if isinstance(mixer, Choose) else [mixer]
    return sum(guide.parameters for guide in {one.guide for one in mixers if isinstance(one, GuidedMixer)})
