"""torch.export: a program that torch runs without the model's source, for any number of images at once."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.export import Dim

from labelflow.classifier import Classifier
from labelflow.formats.metadata import example, metadata

PACKAGES = ()
FILE = "model.pt2"
USAGE = """import json

import timm
import torch
from PIL import Image

stored = {"data_config": "", "label_names": ""}
model = torch.export.load("model.pt2", extra_files=stored).module()
transform = timm.data.create_transform(**json.loads(stored["data_config"]))
logits = model(transform(Image.open("image.jpg").convert("RGB"))[None])
print(json.loads(stored["label_names"])[logits[0].argmax()])
"""


def write(classifier: Classifier, folder: Path) -> None:
    program = torch.export.export(classifier.model, (example(classifier),), dynamic_shapes=({0: Dim("batch")},))
    torch.export.save(program, folder / FILE, extra_files=metadata(classifier))


def read(folder: Path) -> Callable[[Tensor], Tensor]:
    return torch.export.load(folder / FILE).module()
