"""What goes with a model into a single file."""

import json

import torch
from torch import Tensor

from labelflow.classifier import Classifier


def metadata(classifier: Classifier) -> dict[str, str]:
    """In JSON: what timm's `create_transform` takes, the classes' names, and whether an image may have several."""
    several = {"multi_label": json.dumps(True)} if classifier.multi_label else {}
    names = {"label_names": json.dumps(classifier.classes)}
    return {"data_config": json.dumps(classifier.preprocessing.cfg), **names, **several}


def example(classifier: Classifier) -> Tensor:
    """(2, 3, H, W): of one image, torch would conclude that there is always one."""
    size = classifier.preprocessing.size
    return torch.zeros(2, 3, size, size)
