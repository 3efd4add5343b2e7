"""What a model does to tokens and labels, as numbers and maps."""

from labelflow.analysis.presence import Presence, presence
from labelflow.analysis.ratio import LayerRatio, layer_ratios, method_ratios, similarity_ratio
from labelflow.analysis.relevance import relevance, upsampled
from labelflow.analysis.rmse import Rmse, alignment_rmse
from labelflow.analysis.samples import Sample, mixed_samples

__all__ = [
    "LayerRatio",
    "Presence",
    "Rmse",
    "Sample",
    "alignment_rmse",
    "layer_ratios",
    "method_ratios",
    "mixed_samples",
    "presence",
    "relevance",
    "similarity_ratio",
    "upsampled",
]
