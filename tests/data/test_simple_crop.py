"""DeiT III's Simple Random Crop against torchvision's own steps, and where its pixels and labels come from."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import Compose, InterpolationMode, RandomCrop, RandomHorizontalFlip, Resize

from labelflow.chance import drawn_from
from labelflow.data import Data, train_transform
from labelflow.data.geometry import Geometry
from labelflow.labels import Draft, Manifest, Store
from labelflow.labels.sampling import ViewedMap, viewed_map

SIMPLE = Data(image_size=64, crop="simple", auto_augment="", color_jitter=0, erasing=0)
SEEDS = range(20)


def coordinates(width: int, height: int) -> Image.Image:
    """Red is x, green is y."""
    y, x = np.indices((height, width)) + 0.5
    return Image.fromarray(np.stack([255 * x / width, 255 * y / height, 0 * x], 2).round().astype(np.uint8))


@pytest.mark.parametrize("size", [(100, 70), (70, 100), (64, 64), (30, 20)])
def test_it_is_resize_random_crop_and_flip(size: tuple[int, int]) -> None:
    """Shorter side to 64, 4 pixels of reflection, a crop of 64, a flip: bit for bit."""
    ours = train_transform(SIMPLE)
    theirs = Compose(
        [
            Resize(64, InterpolationMode.BICUBIC),
            RandomCrop(64, padding=4, padding_mode="reflect"),
            RandomHorizontalFlip(0.5),
        ]
    )
    image = coordinates(*size)
    for seed in SEEDS:
        with drawn_from(seed):
            seen = ours(image)
        with drawn_from(seed):
            expected = theirs(image)
        assert (seen.image == np.asarray(expected)).all()


@pytest.mark.parametrize("size", [(150, 100), (100, 150), (100, 100)])
def test_pixels_come_from_where_the_geometry_says(size: tuple[int, int]) -> None:
    """Those of the border come from the other side of the edge, as far away from it."""
    transform, outside = train_transform(SIMPLE), 0
    for seed in SEEDS:
        with drawn_from(seed):
            seen = transform(coordinates(*size))
        y, x = (np.indices((64, 64)).reshape(2, -1) + 0.5) / 64
        places = (seen.geometry.matrix @ np.stack([x, y, np.ones_like(x)]))[:2]  # (2, N)
        scale = 64 / min(size)  # numpy mirrors at the middle of the outermost pixel
        half = 0.5 / (scale * np.array(size))[:, None]
        mirrored = np.where(places < 0, 2 * half - places, np.where(places > 1, 2 - 2 * half - places, places))
        shown = seen.image[..., :2].reshape(-1, 2).T / 255
        assert np.abs(shown - mirrored).max() < 0.02
        outside += ((places < 0) | (places > 1)).sum()
        assert (places >= -4.001 / 64).all()
        assert (places <= 1 + 4.001 / 64).all()
    assert outside


def one_map(folder: Path, scores: Sequence[Sequence[float]]) -> Store:
    """The label map of one image: class 0's scores on a grid; class 1 is there, too, and has none."""
    array = np.array(scores)
    manifest = Manifest("noise", "", 64, "whole", "rest", array.shape, k=1, classes=("a", "b"), samples=1)
    draft = Draft(folder, manifest, ["image"])
    draft.write(0, array[None, None], np.zeros((1, 1, *array.shape), int))
    return Store(draft.finish().folder)


def test_labels_of_the_border_are_those_of_the_nearest_cell(tmp_path: Path) -> None:
    """An image whose left half has class 0: the leftmost tokens, a quarter of which is mirrored, have it in full."""
    store = one_map(tmp_path / "labels", [[4.0] * 8 + [0.0] * 8] * 16)
    box = (0.0, -0.0625, 1.0, 1.0)  # 4 of 64 pixels to the left
    for border, expected in (((0.0625, 0.0625), 4.0), ((0.0, 0.0), 3.0)):  # without a border, nothing is known of it
        geometry = Geometry((64, 64), box, border=border)
        labels = ViewedMap.stack([viewed_map(store["image"], geometry, (4, 4), 2)]).to(torch.device("cpu"))
        above, rest = labels.above[0, 0, 0], labels.rest[0, 0]
        assert abs(float(((above + rest) / rest).log()) - expected) < 1e-4  # its score


def test_views_say_how_far_they_are_mirrored() -> None:
    with drawn_from(0):
        geometry = train_transform(SIMPLE)(coordinates(150, 100)).geometry
    assert geometry.border == (4 / 96, 4 / 64)
    assert geometry.size == (150, 100)
    with drawn_from(0):
        assert train_transform(replace(SIMPLE, crop="resized"))(coordinates(150, 100)).geometry.border == (0, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"augment": "device"}, "mirrors borders, which is done by workers only: --augment workers"),
        ({"compat": "official"}, "--compat official repeats what the public code did to --crop resized"),
    ],
)
def test_what_it_cannot_do(changes: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SIMPLE, **changes)
