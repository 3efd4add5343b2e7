"""What a model is trained on. One target, one file, one line here."""

from typing import TYPE_CHECKING

from labelflow.lazy import Registry, exports

if TYPE_CHECKING:
    from labelflow.targets.base import Target, Taught, Truth
    from labelflow.targets.distill import Distill
    from labelflow.targets.pal import PAL
    from labelflow.targets.plain import Plain
    from labelflow.targets.recursive_mix import RecursiveMixTarget
    from labelflow.targets.relabel import ReLabel
    from labelflow.targets.sm_mix import SMMixTarget
    from labelflow.targets.stl import STL, STLLabeler
    from labelflow.targets.tl_align import TLAlign
    from labelflow.targets.token_label import TokenLabel
    from labelflow.targets.token_label_aligned import TokenLabelAligned
    from labelflow.targets.token_mix import TokenMixTarget
    from labelflow.targets.transmix import TransMix
else:
    __getattr__, __dir__ = exports(__name__)

TARGETS: "Registry[type[Target]]" = Registry(
    {
        "plain": "labelflow.targets.plain:Plain",
        "tl_align": "labelflow.targets.tl_align:TLAlign",
        "transmix": "labelflow.targets.transmix:TransMix",
        "token_label": "labelflow.targets.token_label:TokenLabel",
        "token_label_aligned": "labelflow.targets.token_label_aligned:TokenLabelAligned",
        "relabel": "labelflow.targets.relabel:ReLabel",
        "token_mix": "labelflow.targets.token_mix:TokenMixTarget",
        "sm_mix": "labelflow.targets.sm_mix:SMMixTarget",
        "recursive_mix": "labelflow.targets.recursive_mix:RecursiveMixTarget",
        "distill": "labelflow.targets.distill:Distill",
        "pal": "labelflow.targets.pal:PAL",
        "stl_labeler": "labelflow.targets.stl:STLLabeler",
        "stl": "labelflow.targets.stl:STL",
    }
)

__all__ = [
    "PAL",
    "STL",
    "TARGETS",
    "Distill",
    "Plain",
    "ReLabel",
    "RecursiveMixTarget",
    "SMMixTarget",
    "STLLabeler",
    "TLAlign",
    "Target",
    "Taught",
    "TokenLabel",
    "TokenLabelAligned",
    "TokenMixTarget",
    "TransMix",
    "Truth",
]
