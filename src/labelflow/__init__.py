"""labelflow: labels that follow tokens."""

from typing import TYPE_CHECKING

from labelflow.lazy import exports

if TYPE_CHECKING:
    from labelflow import adapters, flow, mixers, models, tokens
    from labelflow.align import Aligned, Output, Student
    from labelflow.api import annotate, compare, robust, train
    from labelflow.checking.run import check_data
    from labelflow.classifier import Classifier, load
    from labelflow.follow import Flow, Layer
    from labelflow.formats.exported import Exported, export
    from labelflow.loss import Loss, Term, make_loss, soft_labels, total
    from labelflow.mix import Mix
    from labelflow.mixers import (
        AttentiveCutMix,
        BlockPatches,
        Choose,
        CutMix,
        GuidedMixup,
        MaskMix,
        MixToken,
        MixUp,
        Mixup,
        NoMix,
        PuzzleMix,
        RandomPatches,
        RecursiveMix,
        ResizeMix,
        SaliencyMix,
        SMMix,
        TokenMix,
    )
    from labelflow.models.merging import merge_tokens
    from labelflow.predictions import Prediction, Predictions
    from labelflow.sparse import Sparse, TokenLabels, sparse_cross_entropy
else:
    __getattr__, __dir__ = exports(__name__)

__version__ = "0.2.0"

__all__ = [
    "Aligned",
    "AttentiveCutMix",
    "BlockPatches",
    "Choose",
    "Classifier",
    "CutMix",
    "Exported",
    "Flow",
    "GuidedMixup",
    "Layer",
    "Loss",
    "MaskMix",
    "Mix",
    "MixToken",
    "MixUp",
    "Mixup",
    "NoMix",
    "Output",
    "Prediction",
    "Predictions",
    "PuzzleMix",
    "RandomPatches",
    "RecursiveMix",
    "ResizeMix",
    "SMMix",
    "SaliencyMix",
    "Sparse",
    "Student",
    "Term",
    "TokenLabels",
    "TokenMix",
    "adapters",
    "annotate",
    "check_data",
    "compare",
    "export",
    "flow",
    "load",
    "make_loss",
    "merge_tokens",
    "mixers",
    "models",
    "robust",
    "soft_labels",
    "sparse_cross_entropy",
    "tokens",
    "total",
    "train",
]
