"""Ways to mix images. One strategy, one file, one line here."""

from labelflow.mixers.attentive_cutmix import AttentiveCutMix
from labelflow.mixers.base import Guided, Mixer
from labelflow.mixers.choose import Choose
from labelflow.mixers.cutmix import CutMix
from labelflow.mixers.mixtoken import MixToken
from labelflow.mixers.mixup import MixUp, NoMix
from labelflow.mixers.patches import BlockPatches, RandomPatches
from labelflow.mixers.puzzlemix import PuzzleMix
from labelflow.mixers.saliencymix import SaliencyMix
from labelflow.mixers.smmix import SMMix
from labelflow.mixers.tokenmix import TokenMix
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


def make_mixer(text: str) -> Mixer | Guided:
    """`cutmix(alpha=1.0)`, or several in turn: `0.5*mixup + 0.5*cutmix`."""
    parts = [(weight, build(name, MIXERS, "mixer")) for weight, name in mixture(text)]
    if len(parts) == 1 and parts[0][0] == 1:
        return parts[0][1]
    return Choose([mixer for _, mixer in parts], [weight for weight, _ in parts])


__all__ = [
    "MIXERS",
    "AttentiveCutMix",
    "BlockPatches",
    "Choose",
    "CutMix",
    "Guided",
    "MixToken",
    "MixUp",
    "Mixer",
    "NoMix",
    "PuzzleMix",
    "RandomPatches",
    "SMMix",
    "SaliencyMix",
    "TokenMix",
    "make_mixer",
]
