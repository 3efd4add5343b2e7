"""Two small models and images of three classes, for tests of what models are asked."""

from pathlib import Path

import timm
import torch
from safetensors.torch import save_file

from labelflow.data import Data, World
from labelflow.robust.models import load_models
from labelflow.robust.session import Session
from labelflow.robust.sets import Set, open_own

CPU = torch.device("cpu")
MODEL = "vit_tiny_patch16_224(patch_size=8, embed_dim=24, depth=1, num_heads=2, img_size=32)"


def write_asked(root: Path) -> None:
    """Two models' weights, and images of three classes."""
    world = World("val", 9, 40)
    for index in range(len(world)):
        path = root / "images" / "abc"[index % 3] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        world.load(index)[0].save(path)
    for seed in (0, 1):
        torch.manual_seed(seed)
        model = timm.create_model(
            "vit_tiny_patch16_224", patch_size=8, embed_dim=24, depth=1, num_heads=2, img_size=32, num_classes=3
        )
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
        save_file(model.state_dict(), root / f"{seed}.safetensors")


def opened(folder: Path) -> Set:
    return open_own(Data(source=str(folder / "images")), own=False, classes=())


def session(folder: Path, out: Path, seeds: tuple[int, ...] = (0, 1), **how: object) -> Session:
    names = [f"{MODEL}={folder / f'{seed}.safetensors'}" for seed in seeds]
    models = load_models(names, CPU, image_size=32, classes=("a", "b", "c"))
    return Session(models, out, CPU, **{"workers": 0, "quiet": True, **how})  # type: ignore[arg-type]
