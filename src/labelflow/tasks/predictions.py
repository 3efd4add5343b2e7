"""What segmenters and detectors see in images.

Shapes: H×W pixels, N objects.
"""

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms.v2 import functional as T

from labelflow.tasks.detect.settings import SURE
from labelflow.tasks.detect.task import DetectRecipe
from labelflow.tasks.runs import LoadedRun
from labelflow.tasks.segment import sliding
from labelflow.tasks.segment.task import SegmentRecipe


@torch.no_grad()
def find_segments(loaded: LoadedRun[SegmentRecipe], image: Image.Image) -> Tensor:
    """The class of each pixel of an image: (H, W)"""
    data = loaded.recipe.data
    seen = T.normalize(_tensor(image, loaded.model), list(data.mean), list(data.std))[None]
    return sliding.classify(lambda images: loaded.model(images).logits, seen, loaded.recipe.inference)[0].cpu()


@torch.no_grad()
def find_objects(loaded: LoadedRun[DetectRecipe], image: Image.Image, least: float = SURE) -> dict[str, Tensor]:
    """The objects of an image that are surer than `least`: boxes (N, 4), labels (N,), scores (N,), masks (N, H, W)."""
    found: dict[str, Tensor] = loaded.model([_tensor(image, loaded.model)])[0]
    kept = found["scores"] > least
    return {name: value[kept].cpu() for name, value in found.items()}


def _tensor(image: Image.Image, model: nn.Module) -> Tensor:
    """(3, H, W), from 0 to 1, on the device of the model"""
    pixels = torch.from_numpy(np.array(image.convert("RGB"))).to(next(model.parameters()).device)
    return pixels.permute(2, 0, 1).float() / 255
