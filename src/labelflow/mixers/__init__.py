"""Ways to mix images: one line in MIXERS each."""

from functools import cache

from labelflow.guides import GUIDES
from labelflow.mixers.attentive_cutmix import AttentiveCutMix
from labelflow.mixers.base import Mixer
from labelflow.mixers.choose import AnyMixer, Choose, guide_parameters, mix_batch
from labelflow.mixers.cutmix import CutMix, MixToken
from labelflow.mixers.guided import Guided, GuidedMixer
from labelflow.mixers.mixup import MixUp, NoMix
from labelflow.mixers.patches import BlockPatches, RandomPatches, TokenMix
from labelflow.mixers.puzzlemix import PuzzleMix
from labelflow.mixers.saliencymix import SaliencyMix
from labelflow.mixers.smmix import SMMix
from labelflow.spec import build, mixture

MIXERS: dict[str, type] = {
    "cutmix": CutMix,
    "mixup": MixUp,
    "mixtoken": MixToken,
    "random_patches": RandomPatches,
    "block_patches": BlockPatches,
    "tokenmix": TokenMix,
    "smmix": SMMix,
    "puzzlemix": PuzzleMix,
    "saliencymix": SaliencyMix,
    "attentive_cutmix": AttentiveCutMix,
    "none": NoMix,
}


def make_mixer(text: str) -> Mixer | GuidedMixer:
    """`cutmix(alpha=1.0)`, or several in turn: `0.5*mixup + 0.5*cutmix`. Guided mixers come with their guides; those
    that name the same one share it."""
    make_guide = cache(lambda name: build(name, GUIDES, "guide"))

    def make(name: str) -> Mixer | GuidedMixer:
        mixer = build(name, MIXERS, "mixer")
        return GuidedMixer(mixer, make_guide(mixer.guide)) if isinstance(mixer, Guided) else mixer

    parts = [(weight, make(name)) for weight, name in mixture(text)]
    if len(parts) == 1 and parts[0][0] == 1:
        return parts[0][1]
    return Choose([mixer for _, mixer in parts], [weight for weight, _ in parts])


__all__ = [
    "MIXERS",
    "AnyMixer",
    "AttentiveCutMix",
    "BlockPatches",
    "Choose",
    "CutMix",
    "Guided",
    "GuidedMixer",
    "MixToken",
    "MixUp",
    "Mixer",
    "NoMix",
    "PuzzleMix",
    "RandomPatches",
    "SMMix",
    "SaliencyMix",
    "TokenMix",
    "guide_parameters",
    "make_mixer",
    "mix_batch",
]
