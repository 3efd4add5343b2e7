"""Ways to mix images. One strategy, one file, one line here."""

from typing import TYPE_CHECKING

from labelflow.lazy import Registry, exports

if TYPE_CHECKING:
    from labelflow.mixers.attentive_cutmix import AttentiveCutMix
    from labelflow.mixers.base import Guided, Mixer
    from labelflow.mixers.choose import Choose, make_mixer
    from labelflow.mixers.cutmix import CutMix
    from labelflow.mixers.mixtoken import MixToken
    from labelflow.mixers.mixup import MixUp, NoMix
    from labelflow.mixers.patches import BlockPatches, RandomPatches
    from labelflow.mixers.puzzlemix import PuzzleMix
    from labelflow.mixers.saliencymix import SaliencyMix
    from labelflow.mixers.smmix import SMMix
    from labelflow.mixers.tokenmix import TokenMix
else:
    __getattr__, __dir__ = exports(__name__)

MIXERS: Registry[type] = Registry(
    {
        "cutmix": "labelflow.mixers.cutmix:CutMix",
        "mixup": "labelflow.mixers.mixup:MixUp",
        "mixtoken": "labelflow.mixers.mixtoken:MixToken",
        "random_patches": "labelflow.mixers.patches:RandomPatches",
        "block_patches": "labelflow.mixers.patches:BlockPatches",
        "tokenmix": "labelflow.mixers.tokenmix:TokenMix",
        "smmix": "labelflow.mixers.smmix:SMMix",
        "puzzlemix": "labelflow.mixers.puzzlemix:PuzzleMix",
        "saliencymix": "labelflow.mixers.saliencymix:SaliencyMix",
        "attentive_cutmix": "labelflow.mixers.attentive_cutmix:AttentiveCutMix",
        "none": "labelflow.mixers.mixup:NoMix",
    }
)

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
