"""What a model is trained on. One target, one file, one line here."""

from labelflow.targets.base import Target
from labelflow.targets.plain import Plain
from labelflow.targets.tl_align import TLAlign
from labelflow.targets.transmix import TransMix

TARGETS: dict[str, type[Target]] = {
    "plain": Plain,
    "tl_align": TLAlign,
    "transmix": TransMix,
}

__all__ = ["TARGETS", "Plain", "TLAlign", "Target", "TransMix"]
