"""What goes with a model into a single file."""

import json

import torch
from torch import Tensor

from labelflow.classifier import Classifier


def metadata(classifier: Classifier) -> dict[str, str]:
    """In JSON: what timm's `create_transform` takes, and the names of the classes."""
    return {"data_config": json.dumps(classifier.preprocessing.cfg), "label_names": json.dumps(classifier.classes)}


def example(classifier: Classifier) -> Tensor:
    """(2, 3, H, W): of one image, torch would conclude that there is always one."""
    size = classifier.preprocessing.size
    return torch.zeros(2, 3, size, size)
