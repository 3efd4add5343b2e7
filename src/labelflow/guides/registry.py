"""Guides by name. One guide, one file, one line here."""

from labelflow.guides.attention import Attention
from labelflow.guides.base import Guide
from labelflow.guides.cnn import CNN
from labelflow.guides.gradient import Gradient
from labelflow.guides.saliency import Saliency

GUIDES: dict[str, type[Guide]] = {
    "attention": Attention,
    "gradient": Gradient,
    "saliency": Saliency,
    "cnn": CNN,
}
