"""Small models and images: two random ViTs with images of three classes, and models whose predictions are known."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from labelflow.classifier import Classifier
from labelflow.data import Data, Preprocessing, World
from labelflow.data.folder import Listed
from labelflow.robustness.datasets import ImageSet, open_dataset
from labelflow.robustness.evaluator import Evaluator
from labelflow.robustness.models import load_models
from labelflow.robustness.results import Section

CPU = torch.device("cpu")
MODEL = "vit_tiny_patch16_224(patch_size=8, embed_dim=24, depth=1, num_heads=2, img_size=32)"
SIZE = 32


def write_vits(root: Path) -> None:
    """Two models' weights, and images of three classes."""
    world = World("val", 9, 40)
    for index in range(len(world)):
        path = root / "images" / "abc"[index % 3] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        world.load(index)[0].save(path)
    for seed in (0, 1):
        torch.manual_seed(seed)
        model = timm.create_model(
            "vit_tiny_patch16_224", patch_size=8, embed_dim=24, depth=1, num_heads=2, img_size=SIZE, num_classes=3
        )
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.5)
        save_file(model.state_dict(), root / f"{seed}.safetensors")


def open_images(folder: Path) -> ImageSet:
    return open_dataset(Data(source=str(folder / "images")), from_run=False, classes=())


def vits(folder: Path, out: Path, seeds: tuple[int, ...] = (0, 1), **options: Any) -> Evaluator:
    names = [f"{MODEL}={folder / f'{seed}.safetensors'}" for seed in seeds]
    models = load_models(names, CPU, image_size=SIZE, classes=("a", "b", "c"))
    return Evaluator(models, out, CPU, **{"workers": 0, "quiet": True, **options})


class ColourReader(nn.Module):
    """Reads the class off the mean colour of an image, or of its top left part: red + 256 · green + shift, in 255ths.

    The next classes in order are the next likeliest, each e times less than the one before.
    """

    def __init__(self, classes: int, shift: int = 0, part: int = SIZE) -> None:
        super().__init__()
        self.classes, self.part = classes, part
        self.register_buffer("shift", torch.tensor(shift))

    def forward(self, images: Tensor) -> Tensor:
        means = (255 * images[..., : self.part, : self.part].double().mean((2, 3)) + 0.3).floor().long()  # (B, 3)
        first = means[:, 0] + 256 * means[:, 1] + self.shift
        return -((torch.arange(self.classes) - first[:, None]) % self.classes).float()


def read(mean: float) -> int:
    """What a ColourReader reads; means of 2ⁿ pixels are never close to where it changes."""
    return math.floor(mean + 0.3)


def known(modules: Mapping[str, nn.Module], classes: Sequence[str], out: Path, **options: Any) -> Evaluator:
    """Of models whose predictions are known."""
    see = Preprocessing(SIZE, crop_pct=1.0, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    models = [Classifier(name, module, tuple(classes), see, name, "by hand") for name, module in modules.items()]
    return Evaluator(models, out, CPU, **{"workers": 0, "quiet": True, **options})


def save_colour(path: Path, red: int, green: int = 0, blue: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (SIZE, SIZE), (red, green, blue)).save(path)


def colour_set(folder: Path, classes: Sequence[str], images: Sequence[tuple[int, int]]) -> ImageSet:
    """Images of one colour each: (label, red)."""
    paths = [str(folder / f"{number}.png") for number in range(len(images))]
    for path, (_, red) in zip(paths, images, strict=True):
        save_colour(Path(path), red)
    source = Listed(folder, paths, [label for label, _ in images], list(classes))
    return ImageSet("colours", source, tuple(classes))


def values(section: Section) -> dict[str, list[float]]:
    """Of each metric, in the order of the models."""
    return {metric.name: list(metric.values) for metric in section.metrics}


def details(section: Section) -> dict[str, list[float]]:
    return {metric.name: list(metric.values) for metric in section.details}


def percent(correct: Sequence[bool]) -> float:
    return 100 * sum(correct) / len(correct)
