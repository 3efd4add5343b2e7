"""Labelled images to ask a model about: a run's own, a folder's, or one of the published sets for ImageNet models."""

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

import torch
from PIL import Image

from labelflow.chance import generator
from labelflow.classifier import wordnet_names
from labelflow.data import Data, Source, Stream, World, open_source
from labelflow.data.folder import SPLITS, Listed, first_folder, image_files, shorten
from labelflow.data.sources import SOURCES

FEW = 64  # images that tell a data set from another one


@dataclass(frozen=True)
class Set:
    """Images whose labels are places in `classes`: the classes that answers are restricted to."""

    name: str
    source: Source
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()
    cropped: bool = False  # its images are the centre already
    truths: Sequence[frozenset[int]] = ()  # where an image may have several right answers

    @cached_property
    def contents(self) -> list[str]:
        """What is in each image: the same for the same ones, wherever they lie and whatever their labels are."""
        return _contents(self.source, range(len(self.source)))

    @cached_property
    def key(self) -> str:
        return digest(*self.contents)

    @cached_property
    def draws(self) -> str:
        """The same for images that draw the same."""
        return digest(*(self.source.key(index) for index in range(len(self.source))))

    @cached_property
    def labels(self) -> list[int] | None:
        """Of all images, where they are known without looking."""
        samples = _samples(self.source)
        return None if samples is None else [label for _, label in samples]


class Part:
    """Some samples of a source."""

    def __init__(self, whole: Source, places: Sequence[int]) -> None:
        self.whole, self.places, self.classes = whole, places, whole.classes

    def __len__(self) -> int:
        return len(self.places)

    def load(self, index: int) -> tuple[Image.Image, int]:
        return self.whole.load(self.places[index])

    def name(self, index: int) -> str:
        return self.whole.name(self.places[index])

    def key(self, index: int) -> str:
        return self.whole.key(self.places[index])


def open_own(data: Data, own: bool, classes: tuple[str, ...]) -> Set:
    """The images to evaluate on: the part of a run's own data that it was not trained on, all of another folder.

    A folder holds `val/CLASS/…`, `CLASS/…`, or `labels.csv` (file, class) with the images beside or below it.
    """
    root = Path(data.source)
    if own or data.source.partition("/")[0].partition("(")[0] in SOURCES:
        source = open_source(data, "val")
        if isinstance(source, Stream):
            raise ValueError(f"a stream such as {data.source} can't be asked about twice; give a folder, or hfds/NAME")
        return Set(data.source, source, wordnet_names(source.classes))
    if (root / "labels.csv").exists():
        return Set(data.source, _of_table(root, classes), classes)
    source = all_images(root)
    return Set(data.source, source, tuple(source.classes))


def all_images(root: Path) -> Listed:
    """Every image of `root/val/CLASS/…` or `root/CLASS/…`."""
    if not root.is_dir():
        raise ValueError(f"there is no folder {root}")
    root = first_folder(root, SPLITS["val"]) or root
    names = folders_in(root)
    return of_classes(root, names, {name: label for label, name in enumerate(names)})


def folders_in(root: Path) -> list[str]:
    """Their names, but for hidden ones."""
    return sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and entry.name[0] != ".")


def of_classes(root: Path, classes: Sequence[str], folders: Mapping[str, int]) -> Listed:
    """The images of class folders, which may not be there. folders: the place of each one's class."""
    samples = [
        (str(root / folder / file), label) for folder, label in folders.items() for file in image_files(root / folder)
    ]
    if not samples:
        raise ValueError(f"{root} has no images in class folders; it should hold one folder of images for each class")
    return Listed(root, samples, classes)


def _of_table(root: Path, classes: tuple[str, ...]) -> Listed:
    """`labels.csv` says the class of each file, by its name or, where no name is a number, by its number."""
    table = root / "labels.csv"
    try:
        with open(table, newline="", encoding="utf-8-sig") as file:
            rows = [(row.get("file"), row.get("class")) for row in csv.DictReader(file)]
    except UnicodeDecodeError as error:
        raise ValueError(f"{table} is not in UTF-8: {error}") from None
    below = image_files(root)
    places = {path: path for path in below}
    for path in below:  # by its last part alone, where that says which
        places.setdefault(os.path.basename(path), path)
    twice = {name for name, count in Counter(map(os.path.basename, below)).items() if count > 1} - set(below)
    numbers = {name: place for place, name in enumerate(classes)}
    if not any(name.isdecimal() for name in classes):
        numbers |= {str(place): place for place in range(len(classes))}
    lost = sorted({str(name) for name, _ in rows if name not in places or name in twice})
    strange = sorted({str(label) for _, label in rows if label not in numbers})
    if not rows or lost == strange == ["None"]:
        raise ValueError(f"{table} should have a line 'file,class' and one for each image")
    if lost or strange:
        what = (
            f"files that are not there, or several: {shorten(lost)}"
            if lost
            else f"classes that no model has: {shorten(strange)}"
        )
        raise ValueError(f"{table} names {what}")
    samples = sorted((str(root / places[str(name)]), numbers[str(label)]) for name, label in rows)
    if len({path for path, _ in samples}) < len(samples):
        raise ValueError(f"{table} names a file twice")
    return Listed(root, samples, classes)


def chosen(found: Set, samples: int, seed: int) -> Set:
    """So many of a set's images, drawn, in their old order; 0: all."""
    if not samples or samples >= len(found.source):
        return found
    order = torch.randperm(len(found.source), generator=generator(seed)).tolist()
    return part_of(found, sorted(order[:samples]))


def part_of(found: Set, places: Sequence[int]) -> Set:
    """The images in these places."""
    truths = [found.truths[place] for place in places] if found.truths else ()
    return replace(found, source=Part(found.source, places), truths=truths)


def digest(*parts: str) -> str:
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        found.update(f"{len(part)} {part}".encode("utf-8", "surrogatepass"))
    return found.hexdigest()


def image_number(source: Source, index: int) -> int:
    """What an image's draws come from: the same in any part of its set."""
    return zlib.crc32(source.key(index).encode("utf-8", "surrogatepass"))


def files_digest(paths: Sequence[str]) -> list[str]:
    """Of what is in them."""
    with ThreadPoolExecutor() as pool:  # hashing lets other threads run
        return list(pool.map(_file_digest, paths))


def _contents(source: Source, places: Sequence[int]) -> list[str]:
    """What is in the images in these places, of files; of other data sets, which they are."""
    if isinstance(source, Part):
        return _contents(source.whole, [source.places[place] for place in places])
    if isinstance(source, Listed):
        return files_digest([source.samples[place][0] for place in places])
    whole = str(vars(source)) if isinstance(source, World) else _spread_digest(source)
    return [f"{whole} {place}" for place in places]


def _spread_digest(source: Source) -> str:
    """Of a data set that is no files: a few images of it, which tell it from another one of its name and length."""
    step = max(1, len(source) // FEW)
    loaded = [source.load(place) for place in range(0, len(source), step)]
    seen = [digest(str(label), str(image.size), image.tobytes().hex()) for image, label in loaded]
    fingerprint = getattr(getattr(source, "dataset", None), "_fingerprint", "")  # of Hugging Face's
    return digest(source.name(0), str(len(source)), str(fingerprint), *seen)


def _samples(source: Source) -> list[tuple[str, int]] | None:
    """Files and their labels, if it is made of files."""
    if isinstance(source, Part):
        whole = _samples(source.whole)
        return None if whole is None else [whole[place] for place in source.places]
    return source.samples if isinstance(source, Listed) else None


def _file_digest(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except OSError as error:  # which is told when the image is read
        return f"unreadable: {error.strerror}"
