"""Labelled images to evaluate models on: a run's own, a folder's, or a published test set for ImageNet models."""

import csv
import hashlib
import os
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from labelflow.chance import generator
from labelflow.data import Data, Source, World, open_map_style
from labelflow.data.folder import SPLITS, Listed, first_folder, shorten
from labelflow.data.imagenet import wordnet_names
from labelflow.data.images import Decode, to_rgb
from labelflow.data.rows import is_table
from labelflow.data.scan import image_files
from labelflow.data.several import is_multi_label
from labelflow.data.sources import is_named

FINGERPRINTED = 64  # images that identify a data set that is not made of files


@dataclass(frozen=True)
class ImageSet:
    """Images, and labels that index `classes`. Predictions are restricted to these classes."""

    name: str
    source: Source
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()
    cropped: bool = False  # its images are centre crops already
    label_sets: Sequence[frozenset[int]] = ()  # where an image may have several correct labels, or none

    @property
    def several(self) -> bool:
        """Whether images have any number of labels."""
        return is_multi_label(self.source)

    @property
    def metric(self) -> str:
        """What `Predictions.score` is."""
        return "mAP" if self.several else "top-1"

    @property
    def title(self) -> str:
        """The same, of a chart."""
        return "Mean average precision" if self.several else "Top-1 accuracy"

    @cached_property
    def hashes(self) -> list[str]:
        """Of each image's contents, regardless of its path and its label."""
        return _hashes(self.source, range(len(self.source)))

    @cached_property
    def key(self) -> str:
        return digest(*self.hashes)

    @cached_property
    def seeds_key(self) -> str:
        """Identifies the images' seeds, which come from their names."""
        return digest(*(self.source.key(index) for index in range(len(self.source))))

    @cached_property
    def labels(self) -> list[Any] | None:
        """Of all images: numbers, or lists of 0 and 1; None if the images would have to be loaded for it."""
        return _labels(self.source)


class Subset:
    """Some samples of a source."""

    def __init__(self, source: Source, indices: Sequence[int]) -> None:
        self.source, self.indices, self.classes = source, indices, source.classes
        self.multi_label = is_multi_label(source)

    def __len__(self) -> int:
        return len(self.indices)

    def load(self, index: int, decode: Decode = to_rgb) -> tuple[Any, Any]:
        return self.source.load(self.indices[index], decode)

    def name(self, index: int) -> str:
        return self.source.name(self.indices[index])

    def key(self, index: int) -> str:
        return self.source.key(self.indices[index])


def open_dataset(data: Data, from_run: bool, classes: tuple[str, ...]) -> ImageSet:
    """The images to evaluate on: the validation split if the data is that of a run, all images of another folder. Of
    another table, its validation split, or all if it has none.

    A folder holds `val/CLASS/…`, `CLASS/…`, or `labels.csv` (file, class) with the images beside or below it.
    """
    root = Path(data.source)
    if from_run or is_named(data.source):
        source = open_map_style(data, "val")
        return ImageSet(data.source, source, wordnet_names(source.classes))
    if is_table(data.source):
        source = open_map_style(replace(data, val_fraction=1.0), "val")
        return ImageSet(data.source, source, tuple(source.classes))
    if (root / "labels.csv").exists():
        return ImageSet(data.source, _read_csv(root, classes), classes)
    source = open_folder(root)
    return ImageSet(data.source, source, tuple(source.classes))


def open_folder(root: Path) -> Listed:
    """Every image of `root/val/CLASS/…` or `root/CLASS/…`."""
    if not root.is_dir():
        raise ValueError(f"there is no folder {root}")
    root = first_folder(root, SPLITS["val"]) or root
    names = class_folders(root)
    return list_images(root, names, {name: label for label, name in enumerate(names)})


def class_folders(root: Path) -> list[str]:
    """The names of its folders, without hidden ones."""
    return sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and entry.name[0] != ".")


def list_images(root: Path, classes: Sequence[str], folders: Mapping[str, int]) -> Listed:
    """The images of class folders, some of which may be missing. folders: the label of each."""
    found = {folder: image_files(root / folder) for folder in folders}
    paths = [str(root / folder / file) for folder, files in found.items() for file in files]
    if not paths:
        raise ValueError(f"{root} has no images in class folders; it should hold one folder of images for each class")
    return Listed(root, paths, [folders[folder] for folder, files in found.items() for _ in files], classes)


def _read_csv(root: Path, classes: tuple[str, ...]) -> Listed:
    """`labels.csv` has the class of each file: its name or, unless a name is itself a number, its index."""
    table = root / "labels.csv"
    try:
        with open(table, newline="", encoding="utf-8-sig") as file:
            rows = [(row.get("file"), row.get("class")) for row in csv.DictReader(file)]
    except UnicodeDecodeError as error:
        raise ValueError(f"{table} is not UTF-8: {error}") from None
    files = image_files(root)
    paths = {path: path for path in files}
    for path in files:
        paths.setdefault(os.path.basename(path), path)  # the file name alone is enough if it is unique
    ambiguous = {name for name, count in Counter(map(os.path.basename, files)).items() if count > 1} - set(files)
    labels = {name: label for label, name in enumerate(classes)}
    if not any(name.isdecimal() for name in classes):
        labels |= {str(label): label for label in range(len(classes))}
    lost = sorted({str(name) for name, _ in rows if name not in paths or name in ambiguous})
    unknown = sorted({str(label) for _, label in rows if label not in labels})
    if not rows or lost == unknown == ["None"]:
        raise ValueError(f"{table} should have the header 'file,class' and a row for each image")
    if lost:
        raise ValueError(f"{table} names missing or ambiguous files: {shorten(lost)}")
    if unknown:
        raise ValueError(f"{table} names classes that the models don't have: {shorten(unknown)}")
    samples = sorted((str(root / paths[str(name)]), labels[str(label)]) for name, label in rows)
    if len({path for path, _ in samples}) < len(samples):
        raise ValueError(f"{table} names a file twice")
    return Listed(root, [path for path, _ in samples], [label for _, label in samples], classes)


def subsample(dataset: ImageSet, samples: int, seed: int) -> ImageSet:
    """A random sample of the images, in their original order; 0: all."""
    if not samples or samples >= len(dataset.source):
        return dataset
    order = torch.randperm(len(dataset.source), generator=generator(seed)).tolist()
    return subset(dataset, sorted(order[:samples]))


def subset(dataset: ImageSet, indices: Sequence[int]) -> ImageSet:
    label_sets = [dataset.label_sets[index] for index in indices] if dataset.label_sets else ()
    return replace(dataset, source=Subset(dataset.source, indices), label_sets=label_sets)


def digest(*parts: str) -> str:
    hasher = hashlib.blake2b(digest_size=16)
    for part in parts:
        hasher.update(f"{len(part)} {part}".encode("utf-8", "surrogatepass"))
    return hasher.hexdigest()


def image_seed(source: Source, index: int) -> int:
    """An image's own seed: the same in any subset."""
    return zlib.crc32(source.key(index).encode("utf-8", "surrogatepass"))


def hash_files(paths: Sequence[str]) -> list[str]:
    """Of their contents."""
    with ThreadPoolExecutor() as pool:  # hashing releases the GIL
        return list(pool.map(_hash_file, paths))


def _hashes(source: Source, indices: Sequence[int]) -> list[str]:
    """Of the contents of images; if they are not files, of the data set and their index."""
    if isinstance(source, Subset):
        return _hashes(source.source, [source.indices[index] for index in indices])
    if isinstance(source, Listed):
        return hash_files([source.name(index) for index in indices])
    fingerprint = str(vars(source)) if isinstance(source, World) else _fingerprint(source)
    return [f"{fingerprint} {index}" for index in indices]


def _fingerprint(source: Source) -> str:
    """Of a data set that is not made of files: a few images distinguish it from others of the same name and length."""
    step = max(1, len(source) // FINGERPRINTED)
    loaded = [source.load(index) for index in range(0, len(source), step)]
    hashes = [digest(str(label), str(image.size), image.tobytes().hex()) for image, label in loaded]
    fingerprint = getattr(getattr(source, "dataset", None), "_fingerprint", "")  # Hugging Face's own
    return digest(source.name(0), str(len(source)), str(fingerprint), *hashes)


def _labels(source: Source) -> list[Any] | None:
    """Of all samples; None if they are not files."""
    if isinstance(source, Subset):
        labels = _labels(source.source)
        return None if labels is None else [labels[index] for index in source.indices]
    return source.labels.tolist() if isinstance(source, Listed) else None


def _hash_file(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except OSError as error:  # reported when the image is loaded
        return f"unreadable: {error.strerror}"
