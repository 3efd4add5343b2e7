"""What a model is trained on. One target, one file, one line here."""

from labelflow.targets.base import Target, Truth
from labelflow.targets.plain import Plain
from labelflow.targets.relabel import ReLabel
from labelflow.targets.sm_mix import SMMixTarget
from labelflow.targets.tl_align import TLAlign
from labelflow.targets.token_label import TokenLabel
from labelflow.targets.token_label_aligned import TokenLabelAligned
from labelflow.targets.token_mix import TokenMixTarget
from labelflow.targets.transmix import TransMix

TARGETS: dict[str, type[Target]] = {
    "plain": Plain,
    "tl_align": TLAlign,
    "transmix": TransMix,
    "token_label": TokenLabel,
    "token_label_aligned": TokenLabelAligned,
    "relabel": ReLabel,
    "token_mix": TokenMixTarget,
    "sm_mix": SMMixTarget,
}

__all__ = [
    "TARGETS",
    "Plain",
    "ReLabel",
    "SMMixTarget",
    "TLAlign",
    "Target",
    "TokenLabel",
    "TokenLabelAligned",
    "TokenMixTarget",
    "TransMix",
    "Truth",
]
