"""A trained classifier that can be asked: the model of a run, or one of timm's."""

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import timm
from timm.data import ImageNetInfo, infer_imagenet_subset, resolve_data_config
from torch import nn

from labelflow.data import Data
from labelflow.models.create import create, read_weights
from labelflow.spec import parse
from labelflow.tasks.classify import weights_file
from labelflow.tasks.runs import load_run


@dataclass(frozen=True, eq=False)
class Classifier:
    """A model, the names of its classes, and how it wants to see images."""

    name: str  # of its architecture, with arguments
    model: nn.Module  # in eval mode
    weights: str  # where they came from
    classes: tuple[str, ...]
    data: Data  # image size, crop, interpolation, mean and std; of a run, its images, too
    folder: Path | None = None  # of a run
    crop_mode: str = "center"  # timm's: center, squash or border


def load_classifier(
    model: str, init: str = "pretrained", image_size: int = 0, classes: tuple[str, ...] = (), weights: str = "best"
) -> Classifier:
    """A run's model, or one of timm's.

    init: timm's weights (pretrained), those of a package (packaged), or a checkpoint file. image_size: 0 for what the
    weights were tested with. classes: those of the data, for a checkpoint that does not say its own. weights: of a run.
    """
    if Path(model).is_dir():
        return _of_run(Path(model), image_size, weights)
    name, arguments = parse(model)
    if "/" in name:
        raise ValueError(f"there is no run {model}")
    cfg = timm.get_pretrained_cfg(name) if timm.is_model(name) else None
    if not init:
        raise ValueError(f"{name} needs trained weights: --init pretrained, packaged, or a checkpoint file")
    is_file = init not in ("pretrained", "packaged")
    if is_file:
        arguments = {"num_classes": _count_classes(init, cfg), **arguments}
    size = image_size or (max((cfg.test_input_size or cfg.input_size)[1:]) if cfg else 224)
    if cfg is not None and cfg.fixed_input_size:
        arguments = {"img_size": size, **arguments}
    network = create(name, init=init, **arguments).eval()
    seen = resolve_data_config(pretrained_cfg=network.pretrained_cfg, use_test_size=True)
    data = Data(
        image_size=size,
        test_crop=min(1.0, seen["crop_pct"]),
        interpolation="bilinear" if seen["interpolation"] == "bilinear" else "bicubic",
        mean=tuple(seen["mean"]),
        std=tuple(seen["std"]),
    )
    origin = _fingerprint(init) if is_file else init
    names = _names(network, classes, known=not is_file)
    return Classifier(model, network, origin, names, data, crop_mode=seen.get("crop_mode") or "center")


def _of_run(folder: Path, image_size: int, weights: str) -> Classifier:
    loaded = load_run(folder, weights, image_size)
    data = replace(loaded.recipe.data, image_size=image_size or loaded.recipe.data.image_size)
    file = {"best": weights_file(str(folder)), "last": str(folder / "last.safetensors")}.get(weights, weights)
    return Classifier(loaded.recipe.model, loaded.model, _fingerprint(file), tuple(loaded.classes), data, folder)


def _count_classes(file: str, cfg: Any) -> int:
    """How many classes the classifier in a checkpoint has."""
    names = (cfg.classifier if cfg else None) or ("head", "fc", "classifier")
    weights = read_weights(file)
    for name in (names,) if isinstance(names, str) else names:
        if f"{name}.weight" in weights:
            return len(weights[f"{name}.weight"])
    raise ValueError(f"{file} has no classifier")


def _names(model: Any, classes: tuple[str, ...], known: bool) -> tuple[str, ...]:
    """The classes of a classifier: ImageNet's, where it is known to be one or has as many; or the data's own, where a
    checkpoint has as many of them."""
    subset = infer_imagenet_subset(model)
    names = ImageNetInfo(subset).label_names() if subset else []
    if not known and model.num_classes == len(classes) and set(names) != set(classes):
        return classes
    if not names:
        raise ValueError(
            f"the classifier has {model.num_classes} classes, the data {len(classes)}, and nothing says which are which"
        )
    return tuple(names)


def _fingerprint(file: str) -> str:
    """A checkpoint's file name and checksum."""
    with open(file, "rb") as opened:
        return f"{os.path.basename(file)} sha256:{hashlib.file_digest(opened, 'sha256').hexdigest()[:16]}"
