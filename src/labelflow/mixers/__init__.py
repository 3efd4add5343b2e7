"""Ways to mix images: one line in MIXERS each."""

from typing import TYPE_CHECKING

from labelflow.lazy import Registry, exports

if TYPE_CHECKING:
    from labelflow.mixers.attentive_cutmix import AttentiveCutMix
    from labelflow.mixers.base import Mixer, Remembering
    from labelflow.mixers.choose import AnyMixer, Choose, guide_parameters, make_mixer, mix_batch, remembers
    from labelflow.mixers.cutmix import CutMix, MixToken
    from labelflow.mixers.guided import Guided, GuidedMixer
    from labelflow.mixers.mixup import MixUp, NoMix
    from labelflow.mixers.patches import BlockPatches, RandomPatches, TokenMix
    from labelflow.mixers.puzzlemix import PuzzleMix
    from labelflow.mixers.recursivemix import RecursiveMix
    from labelflow.mixers.resizemix import ResizeMix
    from labelflow.mixers.saliencymix import SaliencyMix
    from labelflow.mixers.smmix import SMMix
    from labelflow.mixers.timm_mixup import Mixup
else:
    __getattr__, __dir__ = exports(__name__)

MIXERS: Registry[type] = Registry(
    {
        "cutmix": "labelflow.mixers.cutmix:CutMix",
        "mixup": "labelflow.mixers.mixup:MixUp",
        "mixtoken": "labelflow.mixers.cutmix:MixToken",
        "random_patches": "labelflow.mixers.patches:RandomPatches",
        "block_patches": "labelflow.mixers.patches:BlockPatches",
        "tokenmix": "labelflow.mixers.patches:TokenMix",
        "smmix": "labelflow.mixers.smmix:SMMix",
        "puzzlemix": "labelflow.mixers.puzzlemix:PuzzleMix",
        "saliencymix": "labelflow.mixers.saliencymix:SaliencyMix",
        "attentive_cutmix": "labelflow.mixers.attentive_cutmix:AttentiveCutMix",
        "resizemix": "labelflow.mixers.resizemix:ResizeMix",
        "recursivemix": "labelflow.mixers.recursivemix:RecursiveMix",
        "none": "labelflow.mixers.mixup:NoMix",
    }
)

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
    "Mixup",
    "NoMix",
    "PuzzleMix",
    "RandomPatches",
    "RecursiveMix",
    "Remembering",
    "ResizeMix",
    "SMMix",
    "SaliencyMix",
    "TokenMix",
    "guide_parameters",
    "make_mixer",
    "mix_batch",
    "remembers",
]
