"""The models that are compared, each with the normalisation of colours inside: they take pictures from 0 to 1."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from labelflow.classifier import Classifier, load
from labelflow.data import Data
from labelflow.engine.run import Run
from labelflow.tasks.recipe import read_recipe


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


def from_pixels(classifier: Classifier, device: torch.device) -> Classifier:
    """The same classifier, frozen, with the normalisation of colours inside of its model."""
    own = classifier.preprocessing
    model = FromPixels(classifier.model, own.mean, own.std).eval().requires_grad_(False).to(device)
    return replace(classifier, model=model, preprocessing=replace(own, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)))


def load_models(
    names: Sequence[str],
    device: torch.device,
    *,
    weights: str = "",
    image_size: int = 0,
    classes: Sequence[str] = (),
) -> list[Classifier]:
    """Folders of runs, and timm's models, which may name their weights: resnet50, resnet50=packaged, resnet50=a.pth.

    classes: those of the data, for checkpoints that don't name their own.
    """
    if not names:
        raise ValueError("name at least one model: the folder of a run, or a model of timm's")
    return [
        replace(from_pixels(load(name, weights, image_size, classes), device), name=label)
        for name, label in zip(names, _labels(names), strict=True)
    ]


def own_data(models: Sequence[Classifier]) -> Data | None:
    """What all of them were evaluated on when they were trained; None: they don't agree, or have none."""
    runs = [read_recipe(Run(model.folder)).data for model in models if model.folder]
    first = runs[0] if runs else None
    keys = ("data", "root", "val_split", "val_fraction", "split_seed")
    agree = first and all([getattr(run, key) for key in keys] == [getattr(first, key) for key in keys] for run in runs)
    return first if first and agree else None


def _labels(names: Sequence[str]) -> list[str]:
    """The last parts of their paths, if these differ."""
    resolved = {str(Path(name).resolve()) if Path(name).is_dir() else name for name in names}
    if len(resolved) != len(names):
        raise ValueError(f"a model comes twice in {', '.join(names)}")
    short = [Path(name).resolve().name if Path(name).is_dir() else name for name in names]
    return short if len(set(short)) == len(short) else list(names)
