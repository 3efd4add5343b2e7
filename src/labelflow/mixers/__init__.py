"""Ways to mix images. One strategy, one file, one line here."""

from labelflow.mixers.base import Mixer
from labelflow.mixers.choose import Choose
from labelflow.mixers.cutmix import CutMix
from labelflow.mixers.mixtoken import MixToken
from labelflow.mixers.mixup import MixUp, NoMix
from labelflow.mixers.patches import BlockPatches, RandomPatches

MIXERS: dict[str, type] = {
    "cutmix": CutMix,
    "mixup": MixUp,
    "mixtoken": MixToken,
    "random_patches": RandomPatches,
    "block_patches": BlockPatches,
    "none": NoMix,
}

__all__ = ["MIXERS", "BlockPatches", "Choose", "CutMix", "MixToken", "MixUp", "Mixer", "NoMix", "RandomPatches"]
