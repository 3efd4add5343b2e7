"""What does a view cost a data worker? labelflow, timm and torchvision, taking turns in one run.

    python benchmarks/loader.py FOLDER

FOLDER holds photographs, in any folders. All ways make batches of 224×224 pixels, inside one worker of a DataLoader, up
to the moment when a batch is handed to the main process (its memory is shared):

- timm: `ImageDataset`, `create_transform(use_prefetcher=True)` and `fast_collate`: crop, flip, RandAugment, as uint8;
  random erasing is done on the device;
- labelflow, as it is by default, and with `--augment device`, for the same recipe, erasing drawn;
- torchvision: the transforms of its reference training script, which make floats, normalised and erased;
- the same in evaluation: resize, centre crop;
- labelflow with dense labels (18×18 cells, top 5 of 1000 classes), both ways.

timm and labelflow draw the same views. Time is the CPU time of the worker; ratios are medians of those of each round.
Then: what is left for the device, timed on this CPU; and how far crops of `--augment device`, resized by torch, are
from Pillow's, at 224 pixels and at 56, where some JPEGs are decoded at a reduced size. Prints a table, and writes
out/loader.json.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from timm.data import ImageDataset, auto_augment, create_transform
from timm.data.loader import fast_collate
from torch import nn
from torch.utils.data import DataLoader, Dataset, default_collate
from torchvision import transforms
from torchvision.transforms import InterpolationMode

from labelflow.chance import Purpose, drawn_from, restored_generators, seed_generators
from labelflow.data import Data, Preprocessing, train_transform
from labelflow.data.batches import Draw
from labelflow.data.images import Decode, to_rgb
from labelflow.data.scan import find_images
from labelflow.data.transforms import _posterize
from labelflow.data.views import PixelBatch, Views, collate
from labelflow.labels import Draft, Manifest, Store, StoreLabels

Make = Callable[[list[Draw]], tuple[float, Any]]  # seconds, and the batch
GRID = (14, 14)


class Photos:
    """Photographs, whatever they show: a source of labelflow's, and a reader of timm's."""

    classes = tuple(map(str, range(1000)))

    def __init__(self, files: Sequence[str]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return open(self.files[index], "rb"), 0

    def load(self, index: int, decode: Decode = to_rgb) -> tuple[Any, int]:
        with Image.open(self.files[index]) as image:
            return decode(image), 0

    def name(self, index: int) -> str:
        return self.files[index]

    def key(self, index: int) -> str:
        return f"{index:06d}"


def timms(photos: Photos, data: Data, training: bool) -> ImageDataset:
    augmented = {"auto_augment": data.auto_augment, "re_prob": data.erasing, "re_mode": "pixel"}
    transform = create_transform(
        data.image_size,
        is_training=training,
        interpolation=data.interpolation,
        crop_pct=data.test_crop,
        use_prefetcher=True,
        **augmented if training else {},
    )
    if training:  # Pillow refuses to posterize to 0 bits, which timm asks for at times
        for operation in transform.transforms[2].ops:
            if operation.aug_fn is auto_augment.posterize:
                operation.aug_fn = _posterize
    return ImageDataset("", reader=photos, transform=transform)


class TorchvisionPhotos(Dataset[Any]):
    """As in references/classification/presets.py, with RandAugment."""

    def __init__(self, photos: Photos, data: Data, training: bool) -> None:
        colours = [
            transforms.PILToTensor(),
            transforms.ConvertImageDtype(torch.float),
            transforms.Normalize(data.mean, data.std),
        ]
        bilinear = InterpolationMode.BILINEAR
        steps: list[nn.Module]
        if training:
            steps = [
                transforms.RandomResizedCrop(data.image_size, interpolation=bilinear, antialias=True),
                transforms.RandomHorizontalFlip(),
                transforms.RandAugment(interpolation=bilinear),
                *colours,
                transforms.RandomErasing(data.erasing),
            ]
        else:
            size = round(data.image_size / data.test_crop)
            steps = [
                transforms.Resize(size, bilinear, antialias=True),
                transforms.CenterCrop(data.image_size),
                *colours,
            ]
        self.photos, self.transform = photos, transforms.Compose(steps)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        with open(self.photos.files[index], "rb") as file:
            return self.transform(Image.open(file).convert("RGB")), 0


def timed(work: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    begin = time.process_time()
    made = work(*arguments)
    return time.process_time() - begin, made


def own_way(views: Views, data: Data, draws: list[Draw]) -> tuple[float, PixelBatch]:
    def work() -> PixelBatch:
        batch = collate(views.__getitems__(draws), Preprocessing.of_data(data).normalise)
        ForkingPickler.dumps(batch)
        return batch

    return timed(work)


def other_way(
    dataset: Any, together: Callable[[Any], Any], seeded: bool, draws: list[Draw]
) -> tuple[float, list[torch.Tensor]]:
    """seeded: with the draws of labelflow's views; seeding takes no time here."""
    views, total = [], 0.0
    with restored_generators():
        for draw in draws:
            if seeded:
                seed_generators(0, Purpose.VIEW, draw.epoch, draw.position)
            seconds, view = timed(dataset.__getitem__, draw.sample)
            views.append(view)
            total += seconds

    def work() -> list[torch.Tensor]:
        batch = list(together(views))
        ForkingPickler.dumps(batch)
        return batch

    seconds, batch = timed(work)
    return total + seconds, batch


def crop_differences(photos: Photos, size: int) -> np.ndarray:
    """Between bytes of crops that torch and Pillow resize from the same box: a histogram, (256,)"""
    plain = Data(augment="device", image_size=size, auto_augment="", color_jitter=0.0, flip=0.0, erasing=0.0)
    transform, counts = train_transform(plain), np.zeros(256, int)
    for place in range(min(256, len(photos))):
        with drawn_from(place):
            seen = transform(photos.load(place, transform.decode)[0])
        image, _ = photos.load(place)
        top, left, height, width = np.multiply(seen.geometry.box, (image.height, image.width) * 2).round(6).tolist()
        crop = image.crop((round(left), round(top), round(left + width), round(top + height)))
        expected = np.asarray(crop.resize((size, size), Image.Resampling.BICUBIC)).transpose(2, 0, 1).astype(int)
        counts += np.bincount(np.abs(seen.image.pixels.numpy() - expected).ravel(), minlength=256)
    return counts


def made_up_store(folder: Path, keys: list[str]) -> Store:
    """Labels of 18×18 cells: each class has a place in the image."""
    chance = np.random.default_rng(0)
    manifest = Manifest("none", "none", 288, "whole", "rest", (18, 18), 5, Photos.classes, len(keys))
    draft = Draft(folder, manifest, keys)
    for shard in draft.missing():
        count = len(draft.places(shard))
        palette = np.argsort(chance.random((count, 1000)), 1)[:, :60]
        nearest = (np.indices((18, 18)).sum(0) + np.arange(0, 5 * 11, 11)[:, None, None]) % 60  # (5, 18, 18)
        classes = palette[:, nearest]
        scores = np.sort(chance.gamma(2, 3, classes.shape), 1)[:, ::-1]
        draft.write(shard, scores, classes)
    return draft.finish()


class Rounds(Dataset[dict[str, float]]):
    """One round after the other, in a worker: the seconds that each way took."""

    def __init__(self, photos: Photos, ways: dict[str, Make], batch: int, rounds: int) -> None:
        self.photos, self.ways, self.batch, self.rounds = photos, ways, batch, rounds

    def __len__(self) -> int:
        return self.rounds

    def __getitem__(self, number: int) -> dict[str, float]:
        places = range(number * self.batch, (number + 1) * self.batch)
        draws = [Draw(place % len(self.photos), 0, place) for place in places]
        for draw in draws:
            Path(self.photos.files[draw.sample]).read_bytes()  # all ways find files in the system's cache
        return {name: make(draws)[0] for name, make in self.ways.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="photographs")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--out", type=Path, default=Path("out"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    photos, data = Photos(find_images(options.folder)), Data()
    device = replace(data, augment="device")

    with tempfile.TemporaryDirectory() as folder:
        keys = [photos.key(index) for index in range(len(photos))]
        labels = StoreLabels(made_up_store(Path(folder) / "labels", keys), GRID)
        views = {
            "labelflow": Views(photos, train_transform(data), 0, True),
            "labelflow, --augment device": Views(photos, train_transform(device), 0, True),
            "labelflow, labels": Views(photos, train_transform(data), 0, True, labels),
            "labelflow, --augment device, labels": Views(photos, train_transform(device), 0, True, labels),
            "labelflow, evaluation": Views(photos, Preprocessing.of_data(data).view, 0, False),
        }
        ways: dict[str, Make] = {
            "timm": partial(other_way, timms(photos, data, True), fast_collate, True),
            "torchvision": partial(other_way, TorchvisionPhotos(photos, data, True), default_collate, False),
            "timm, evaluation": partial(other_way, timms(photos, data, False), fast_collate, False),
            "torchvision, evaluation": partial(
                other_way, TorchvisionPhotos(photos, data, False), default_collate, False
            ),
            **{name: partial(own_way, made, data) for name, made in views.items()},
        }
        rounds = Rounds(photos, ways, options.batch, options.rounds + 1)
        loader: DataLoader[dict[str, float]] = DataLoader(rounds, batch_size=None, num_workers=1)
        found = list(loader)[1:]

        draws = [Draw(place % len(photos), 0, place) for place in range(options.batch)]
        left = {}
        for name in ("labelflow", "labelflow, --augment device", "labelflow, --augment device, labels"):
            _, batch = own_way(views[name], data, draws)
            batch.to(torch.device("cpu"))
            left[name] = statistics.median(timed(batch.to, torch.device("cpu"))[0] for _ in range(5))

    against = {name: "timm, evaluation" if "evaluation" in name else "timm" for name in ways}
    against["labelflow, labels"] = "labelflow"
    against["labelflow, --augment device, labels"] = "labelflow, --augment device"
    table = {
        name: {
            "ms a view": 1000 / options.batch * statistics.median(one[name] for one in found),
            "ratio": statistics.median(one[name] / one[other] for one in found),
            "to": other,
            "left for the device, ms on this CPU": 1000 / options.batch * left[name] if name in left else None,
        }
        for name, other in against.items()
    }
    for name, row in table.items():
        rest = f"   left for the device: {row[key]:.3f} ms" if row[key := list(row)[-1]] else ""
        print(f"{name:36}{row['ms a view']:8.3f} ms   {row['ratio']:.3f} of {row['to']}{rest}")
    for size in (224, 56):
        parts = (counts := crop_differences(photos, size)) / counts.sum()
        print(
            f"crops of {size} pixels: {parts[0]:.2%} of the bytes as Pillow's, {parts[1]:.2%} differ by 1, "
            f"{parts[2:].sum():.3%} by more; {parts @ np.arange(256):.2f} of 255 on average"
        )
    options.out.mkdir(exist_ok=True)
    (options.out / "loader.json").write_text(json.dumps(table, indent=2))


if __name__ == "__main__":
    main()
