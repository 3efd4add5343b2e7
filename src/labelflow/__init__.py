"""labelflow: labels that follow tokens."""

from labelflow import adapters, flow, mixers, models
from labelflow.align import Aligned, Flow, Layer, Output, Student
from labelflow.loss import Term, soft_labels, total
from labelflow.mix import Mix
from labelflow.mixers import BlockPatches, Choose, CutMix, MixUp, NoMix, RandomPatches

__version__ = "0.1.0"

__all__ = [
    "Aligned",
    "BlockPatches",
    "Choose",
    "CutMix",
    "Flow",
    "Layer",
    "Mix",
    "MixUp",
    "NoMix",
    "Output",
    "RandomPatches",
    "Student",
    "Term",
    "adapters",
    "flow",
    "mixers",
    "models",
    "soft_labels",
    "total",
]
