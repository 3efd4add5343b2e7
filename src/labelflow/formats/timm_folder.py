"""A folder that timm loads, as timm writes it; and the Hugging Face Hub, where timm puts the same."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
from timm.models import push_to_hf_hub, save_for_hf
from torch import Tensor

from labelflow.classifier import Classifier
from labelflow.models.merging import require_all_tokens

PACKAGES = ()
FILE = ""  # the folder itself
USAGE = """import timm
from PIL import Image

model = timm.create_model("local-dir:.", pretrained=True).eval()
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
logits = model(transform(Image.open("image.jpg").convert("RGB"))[None])
print(model.pretrained_cfg["label_names"][logits[0].argmax()])
"""


def write(classifier: Classifier, folder: Path) -> None:
    require_all_tokens(classifier.model, "timm's format, unlike onnx and torch, needs")
    save_for_hf(classifier.model, str(folder), **_settings(classifier))


def read(folder: Path) -> Callable[[Tensor], Tensor]:
    model: Callable[[Tensor], Tensor] = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    return model


def push(classifier: Classifier, repo: str, card: dict[str, Any]) -> str:
    """To the Hub; returns the address."""
    address = push_to_hf_hub(classifier.model, repo, model_card=card, **_settings(classifier))
    return str(address)


def _settings(classifier: Classifier) -> dict[str, Any]:
    return {
        "model_config": {"label_names": list(classifier.classes), "multi_label": classifier.multi_label},
        "data_config": classifier.preprocessing.cfg,
        "safe_serialization": True,
    }
