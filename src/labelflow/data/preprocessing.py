"""How a model sees images, in the words of timm's `pretrained_cfg`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from PIL import Image
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, create_transform, resolve_data_config
from torch import Tensor
from torchvision.transforms import Compose

from labelflow.data.geometry import OnImage
from labelflow.data.normalise import Normalise
from labelflow.data.settings import Data
from labelflow.data.transforms import Steps, Transform


@dataclass(frozen=True)
class Preprocessing:
    """From an image to what a model takes."""

    size: int  # side of the image, in pixels
    crop_pct: float = 0.875  # part of the side that the centre crop shows
    crop_mode: str = "center"  # center, squash or border
    interpolation: str = "bicubic"
    mean: tuple[float, ...] = IMAGENET_DEFAULT_MEAN
    std: tuple[float, ...] = IMAGENET_DEFAULT_STD

    @classmethod
    def of_data(cls, data: Data) -> Self:
        """How a run evaluates."""
        interpolation = "bicubic" if data.interpolation == "random" else data.interpolation
        return cls(data.image_size, data.test_crop, "center", interpolation, data.mean, data.std)

    @classmethod
    def of_cfg(cls, cfg: Mapping[str, Any], size: int = 0) -> Self:
        """What timm's `pretrained_cfg` says of evaluation, at its own image size or another one."""
        seen = resolve_data_config(pretrained_cfg=dict(cfg), use_test_size=True)
        size = size or seen["input_size"][-1]
        mean, std = tuple(seen["mean"]), tuple(seen["std"])
        return cls(size, seen["crop_pct"], seen["crop_mode"], seen["interpolation"], mean, std)

    @property
    def cfg(self) -> dict[str, Any]:
        """For timm's `pretrained_cfg`."""
        return {
            "input_size": (3, self.size, self.size),
            "crop_pct": self.crop_pct,
            "crop_mode": self.crop_mode,
            "interpolation": self.interpolation,
            "mean": self.mean,
            "std": self.std,
        }

    @property
    def normalise(self) -> Normalise:
        """What is left to do where `transform(normalize=False)` or `view` ends."""
        return Normalise(self.mean, self.std)

    @property
    def view(self) -> Transform:
        """timm's transform, for batches: it ends with bytes as Pillow has them, (size, size, 3)."""
        *steps, _ = self.transform(normalize=False).transforms  # type: ignore[attr-defined]
        return Steps(OnImage(Compose([*steps, np.asarray])))

    def transform(self, normalize: bool = True) -> Callable[[Image.Image], Tensor]:
        """timm's transform: (3, size, size), normalised, or uint8 as it is before that."""
        return create_transform(
            self.size,
            crop_pct=self.crop_pct,
            crop_mode=self.crop_mode,
            interpolation=self.interpolation,
            mean=self.mean,
            std=self.std,
            use_prefetcher=not normalize,
        )
