"""Images as people give them: files, folders, patterns of file names, PIL images, tensors, and lists of these."""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from labelflow.data.images import read, to_rgb
from labelflow.data.scan import find_images
from labelflow.data.unreadable import Problem
from labelflow.data.views import load_sample

Images = Tensor | Image.Image | Path | str | Iterable["Images"]  # tensors are preprocessed: (B, 3, H, W) or (3, H, W)
OneImage = Tensor | Image.Image | str  # (3, H, W), a picture, or a file


def list_images(images: Images) -> list[OneImage]:
    """One by one, in their order. Nothing is read yet."""
    if isinstance(images, str | Path):
        return [*find_images(images)]
    if isinstance(images, Image.Image):
        return [images]
    if isinstance(images, Tensor):
        return _list_tensors(images)
    if isinstance(images, Iterable):
        return [one for some in images for one in list_images(some)]
    raise ValueError(f"images are files, folders, patterns, PIL images or tensors, not {type(images).__name__}")


def _list_tensors(images: Tensor) -> list[OneImage]:
    """(B, 3, H, W) or (3, H, W)"""
    if images.ndim not in (3, 4) or images.shape[-3] != 3 or not images.is_floating_point():
        raise ValueError(
            "a tensor of images is preprocessed, (B, 3, H, W) or (3, H, W) of floats, "
            f"not {tuple(images.shape)} of {images.dtype}"
        )
    return list(images.detach().cpu().reshape(-1, *images.shape[-3:]))


class Picture(NamedTuple):
    name: str
    seen: Any  # what the transform made of it; None where it could not be read
    problem: Problem | None  # why it could not be read


class PictureBatch(NamedTuple):
    names: list[str]  # of those that could be read
    seen: Any  # (B, 3, H, W), or a list where the transform does not give tensors
    problems: list[Problem]


class Pictures(Dataset[Picture]):
    """Images and how they are seen. Tensors are left as they are."""

    def __init__(self, images: Sequence[OneImage], transform: Callable[[Image.Image], Any]) -> None:
        self.images, self.transform = images, transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Picture:
        _, seen, problem = load_sample(self, self.load, index, training=False, blank=_nothing)
        return Picture(self.name(index), seen, problem)

    def load(self, index: int) -> Any:
        image = self.images[index]
        if isinstance(image, Tensor):
            return image
        return self.transform(read(image) if isinstance(image, str) else to_rgb(image))

    def name(self, index: int) -> str:
        """Its file, where it has one."""
        image = self.images[index]
        file = image if isinstance(image, str) else os.fsdecode(getattr(image, "filename", ""))
        return file or f"image {index}"


def _nothing() -> None:
    pass


def collate_pictures(pictures: list[Picture]) -> PictureBatch:
    read = [picture for picture in pictures if not picture.problem]
    seen = [picture.seen for picture in read]
    problems = [picture.problem for picture in pictures if picture.problem]
    return PictureBatch([picture.name for picture in read], _stacked(seen), problems)


def _stacked(seen: list[Any]) -> Any:
    if not seen or not isinstance(seen[0], Tensor):
        return seen
    sizes = sorted({tuple(one.shape) for one in seen})
    if len(sizes) > 1:
        raise ValueError(f"images of different sizes can't be in one batch: {' and '.join(map(str, sizes[:2]))}")
    return torch.stack(seen)
