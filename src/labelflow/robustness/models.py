"""The models to compare, each with its normalisation inside: they take images from 0 to 1."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from labelflow.classifier import Classifier, load
from labelflow.data import Data
from labelflow.data.several import HOW_MANY
from labelflow.engine.run import Run
from labelflow.robustness.datasets import ImageSet
from labelflow.tasks.recipe import read_recipe


class FromPixels(nn.Module):
    """A model with its normalisation inside: it takes images (B, 3, H, W) from 0 to 1."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(3, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(self.normalise(images))
        return logits

    def normalise(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std


def from_pixels(classifier: Classifier, device: torch.device) -> Classifier:
    """The same classifier, frozen, with its normalisation inside the model."""
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
    """Runs' folders, and timm models, which may name their weights: resnet50, resnet50=packaged, resnet50=a.pth.

    classes: those of the data, for checkpoints that don't name their own.
    """
    if not names:
        raise ValueError("name at least one model: a run's folder, or a timm model")
    return [
        replace(from_pixels(load(name, weights, image_size, classes), device), name=label)
        for name, label in zip(names, _labels(names), strict=True)
    ]


def evaluation_data(models: Sequence[Classifier]) -> Data | None:
    """The data that all runs among the models were evaluated on; None if they differ, or if there is no run."""
    data = [read_recipe(Run(model.folder)).data for model in models if model.folder]
    splits = {(own.source, own.columns, own.root, own.val_split, own.val_fraction, own.split_seed) for own in data}
    return data[0] if len(splits) == 1 else None


def check_labels(model: Classifier, dataset: ImageSet) -> None:
    """A model has to see images as they are labelled, with one class or several."""
    if model.multi_label != dataset.several:
        raise ValueError(
            f"{model.name} was trained on images with {HOW_MANY[model.multi_label]}, but those of {dataset.name} have "
            f"{HOW_MANY[dataset.several]}"
        )


def _labels(names: Sequence[str]) -> list[str]:
    """The last parts of their paths, if these are unique."""
    resolved = {str(Path(name).resolve()) if Path(name).is_dir() else name for name in names}
    if len(resolved) != len(names):
        raise ValueError(f"duplicate model in {', '.join(names)}")
    short = [Path(name).resolve().name if Path(name).is_dir() else name for name in names]
    return short if len(set(short)) == len(short) else list(names)
