"""ONNX: a file that ONNX Runtime opens, for any number of images at once."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.export import Dim

from labelflow.classifier import Classifier
from labelflow.formats.metadata import example, metadata

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
FILE = "model.onnx"
USAGE = """import json

import onnxruntime
import timm
from PIL import Image

session = onnxruntime.InferenceSession("model.onnx")
stored = session.get_modelmeta().custom_metadata_map
transform = timm.data.create_transform(**json.loads(stored["data_config"]))
images = transform(Image.open("image.jpg").convert("RGB"))[None].numpy()
(logits,) = session.run(None, {"images": images})
print(json.loads(stored["label_names"])[logits[0].argmax()])
"""


def write(classifier: Classifier, folder: Path) -> None:
    program = torch.onnx.export(
        classifier.model,
        (example(classifier),),
        dynamo=True,
        dynamic_shapes=({0: Dim("batch")},),
        input_names=["images"],
        output_names=["logits"],
        optimize=False,  # ONNX Runtime does that itself; onnxscript's changes what T2T-ViT's performers compute
        verbose=False,
    )
    assert program is not None
    program.model.metadata_props.update(metadata(classifier))
    program.save(folder / FILE)


def read(folder: Path) -> Callable[[Tensor], Tensor]:
    from onnxruntime import InferenceSession

    session = InferenceSession(folder / FILE)
    return lambda images: torch.from_numpy(session.run(None, {"images": images.numpy()})[0])
