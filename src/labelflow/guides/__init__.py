"""What tells a mixer where the important parts of an image are: the image itself, a CNN, a gradient, attention."""

from labelflow.guides.attention import Attention
from labelflow.guides.base import Guidance, Guide, UnmixedBatch
from labelflow.guides.cnn import CNN
from labelflow.guides.gradient import Gradient
from labelflow.guides.saliency import Saliency

GUIDES: dict[str, type[Guide]] = {
    "attention": Attention,
    "gradient": Gradient,
    "saliency": Saliency,
    "cnn": CNN,
}

__all__ = ["GUIDES", "Guidance", "Guide", "UnmixedBatch"]
