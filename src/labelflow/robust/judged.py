"""The models that are compared: what each sees, and a key that changes with whatever decides its answers."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from labelflow.data import Data
from labelflow.data.folder import shorten
from labelflow.robust.pictures import Look
from labelflow.robust.sets import digest, wordnet_names
from labelflow.spec import split
from labelflow.tasks.classifiers import Classifier, load_classifier


class FromPixels(nn.Module):
    """A model with the normalisation of colours inside: it takes pictures (B, 3, H, W) from 0 to 1."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(3, 1, 1))

    def forward(self, pictures: Tensor) -> Tensor:
        logits: Tensor = self.model(self.normalised(pictures))
        return logits

    def normalised(self, pictures: Tensor) -> Tensor:
        return (pictures - self.mean) / self.std

    @property
    def key(self) -> str:
        """Of its weights and colours."""
        found = hashlib.blake2b(digest_size=16)
        for name, tensor in self.state_dict().items():
            found.update(f"{name} {tuple(tensor.shape)}".encode())
            found.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        return found.hexdigest()


@dataclass(frozen=True, eq=False)
class Judged:
    """A model under its name in tables."""

    name: str
    model: FromPixels  # in eval mode
    classifier: Classifier

    @property
    def look(self) -> Look:
        data = self.classifier.data
        interpolation = "bicubic" if data.interpolation == "random" else data.interpolation
        return Look(data.image_size, data.test_crop, interpolation, self.classifier.crop_mode)

    @cached_property
    def key(self) -> str:
        """Of its architecture, weights and colours."""
        return digest(self.classifier.name, self.model.key)

    def columns(self, classes: Sequence[str]) -> list[int] | None:
        """The places of these classes in its logits; None: they are its classes, one by one."""
        own = self.classifier.classes
        if tuple(classes) == own:
            return None
        places = {name: place for place, name in enumerate(own)}
        unknown = [name for name in classes if name not in places]
        if unknown:
            raise ValueError(
                f"{len(unknown)} of the data's {len(classes)} classes are unknown to {self.name}: {shorten(unknown)}; "
                f"it knows {len(own)}, such as {', '.join(own[:3])}"
            )
        return [places[name] for name in classes]


def load_judged(
    names: Sequence[str],
    device: torch.device,
    *,
    init: str = "pretrained",
    weights: str = "best",
    image_size: int = 0,
    classes: tuple[str, ...] = (),
) -> list[Judged]:
    """Folders of runs, and timm's models, which may say their weights: resnet50, resnet50=pretrained, resnet50=a.pth.

    classes: those of the data, for checkpoints that don't say their own.
    """
    if not names:
        raise ValueError("name one model at least: the folder of a run, or a model of timm's")
    found = []
    for name, label in zip(names, _labels(names), strict=True):
        model, own = with_weights(name)
        classifier = load_classifier(model, own or init, image_size, classes, weights)
        classifier = replace(classifier, classes=wordnet_names(classifier.classes))
        data = classifier.data
        asked = FromPixels(classifier.model, data.mean, data.std).eval().requires_grad_(False).to(device)
        found.append(Judged(label, asked, classifier))
    return found


def with_weights(name: str) -> tuple[str, str]:
    """A model, and the weights that its name may tell.

    >>> with_weights("resnet50=my.pth"), with_weights("resnet50")
    (('resnet50', 'my.pth'), ('resnet50', ''))
    """
    model, *own = [name] if Path(name).is_dir() else split(name, "=")  # weights may have such signs, too
    return model, "=".join(own)


def own_data(models: Sequence[Judged]) -> Data | None:
    """What all of them were evaluated on when they were trained; None: they don't agree, or have none."""
    runs = [model.classifier.data for model in models if model.classifier.folder]
    first = runs[0] if runs else None
    keys = ("source", "root", "val_split", "val_fraction", "split_seed")
    agree = first and all([getattr(run, key) for key in keys] == [getattr(first, key) for key in keys] for run in runs)
    return first if first and agree else None


def _labels(names: Sequence[str]) -> list[str]:
    """The last parts of their paths, if these differ."""
    resolved = {str(Path(name).resolve()) if Path(name).is_dir() else name for name in names}
    if len(resolved) != len(names):
        raise ValueError(f"a model comes twice in {', '.join(names)}")
    short = [Path(name).resolve().name if Path(name).is_dir() else name for name in names]
    return short if len(set(short)) == len(short) else list(names)
