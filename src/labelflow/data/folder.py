"""A folder of images, one folder a class."""

import hashlib
import os
from collections.abc import Callable, Sequence, Sized
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
from numpy import ndarray
from PIL import Image

from labelflow.data.images import EXTENSIONS, Decode, to_rgb
from labelflow.data.index import FileIndex, Paths, open_index

SPLITS = {"train": ("train", "training"), "val": ("val", "valid", "validation", "test")}


class Listed:
    """Files of images and their labels, which are places in `classes`."""

    def __init__(self, root: Path, paths: Sequence[str], labels: Sequence[int], classes: Sequence[str]) -> None:
        self.root, self.paths, self.classes = root, paths, classes
        self.labels: ndarray = np.array(labels, np.int32)  # (N,)

    def __len__(self) -> int:
        return len(self.paths)

    def load(self, index: int, decode: Decode = to_rgb) -> tuple[Any, Any]:
        with Image.open(self.paths[index]) as image:
            return decode(image), self.label(index)

    def label(self, index: int) -> Any:
        return int(self.labels[index])

    def name(self, index: int) -> str:
        return self.paths[index]

    def files(self) -> Sequence[str]:
        return self.paths

    def key(self, index: int) -> str:
        return os.path.relpath(self.paths[index], self.root).replace(os.sep, "/")


class Folder(Listed):
    """`root/train/CLASS/…` and `root/val/CLASS/…`; or `root/CLASS/…`, of which a part is set aside for validation.

    That part depends on the files' names and the seed alone: in each class the files with the smallest hashes are set
    aside, so that new files move few old ones. A val_fraction of 1 is all of it, or of its val/. The samples are sorted
    by name.
    """

    paths: Paths

    def __init__(
        self,
        root: Path | str,
        split: str = "train",
        val_fraction: float = 0.1,
        seed: int = 0,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        """tell: called with progress messages."""
        self.root = Path(root)
        if not self.root.is_dir():
            raise ValueError(
                f"there is no folder {self.root}; give one that holds a folder of images for each class: --data FOLDER"
            )
        check_utf8(str(root))
        halves = {name: first_folder(self.root, names) for name, names in SPLITS.items()}
        whole = split == "val" and val_fraction == 1  # other data, to evaluate on
        if not whole and (halves["train"] is None) != (halves["val"] is None):
            there, missing = ("train", "val") if halves["val"] is None else ("val", "train")
            raise ValueError(f"{self.root} has a folder {there!r} but no {missing!r}; give both, or class folders only")
        self.classes = _classes(halves["train"] or (halves["val"] if whole else None) or self.root)
        half = halves["val" if split == "val" else "train"]
        if half is not None:
            unknown = sorted(set(_classes(half)) - set(self.classes))
            if unknown:
                raise ValueError(f"{half} has classes missing from {halves['train']}: {shorten(unknown)}")
        self.folder = half or self.root  # that of the class folders
        divided = half is None and not whole
        if divided and not 0 < val_fraction < 1:
            raise ValueError(f"val_fraction must lie between 0 and 1, not {val_fraction}")
        index = open_index(self.folder, tell)
        places = [np.asarray(index.of_class(name), np.int32) for name in self.classes]
        empty = [name for name, own in zip(self.classes, places, strict=True) if not len(own)]
        if empty and self.folder == (halves["train"] or self.root):
            raise ValueError(
                f"{halves['train'] or self.root} has class folders without images: {shorten(empty)}; "
                f"images end in {shorten(sorted(EXTENSIONS))}"
            )
        if divided:
            aside = [
                _aside(index, name, own, val_fraction, seed) for name, own in zip(self.classes, places, strict=True)
            ]
            places = [own[part == (split == "val")] for own, part in zip(places, aside, strict=True)]
        chosen: ndarray | range = np.concatenate(places)
        if not len(chosen):
            raise ValueError(f"{self.folder} has too few images: a class needs one to train on and one to evaluate on")
        if len(chosen) == len(index):
            chosen = range(len(index))
        self.labels = np.repeat(np.arange(len(places), dtype=np.int32), [len(own) for own in places])
        folders = [os.path.join(self.folder, name, "") for name in self.classes]
        self.paths = Paths(index, folders, self.labels, chosen)

    def key(self, index: int) -> str:
        """`CLASS/FILE` without its ending, as the released label maps are called."""
        return f"{self.classes[self.labels[index]]}/{os.path.splitext(self.paths.below(index))[0]}"


def _aside(index: FileIndex, name: str, places: ndarray, fraction: float, seed: int) -> ndarray:
    """Which files of a class are set aside for validation: (N,) bool."""
    hashes = b"".join(order_of(seed, f"{name}/{file}") for file in index.names(places))
    order = np.argsort(np.frombuffer(hashes, ">u8"), kind="stable")
    aside = np.zeros(len(places), bool)
    aside[order[: aside_count(places, fraction)]] = True
    return aside


def check_outside(out: Path, images: Path, instead: Path) -> None:
    """ValueError if what is written to a folder would become a part of the images."""
    if out.resolve().is_relative_to(images.resolve()):
        raise ValueError(
            f"{out} lies within the images and would become a part of them; try --out {quote(str(instead))}"
        )


def first_folder(root: Path, names: tuple[str, ...]) -> Path | None:
    return next((root / name for name in names if (root / name).is_dir()), None)


def _classes(root: Path) -> list[str]:
    names = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise ValueError(f"{root} has no class folders; it should hold one folder of images for each class")
    for name in names:
        check_utf8(name)
    return names


def check_utf8(name: str) -> None:
    """A run writes the names of its classes and of its data; those of files may be any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the name of a folder is not UTF-8: rename {name!r}") from None


def aside_count(files: Sized, fraction: float) -> int:
    """At least one for validation and one for training, where there are two."""
    return min(max(1, round(fraction * len(files))), len(files) - 1)


def order_of(seed: int, name: str) -> bytes:
    return hashlib.blake2b(f"{seed} {name}".encode("utf-8", "surrogatepass"), digest_size=8).digest()


def shorten(names: list[str]) -> str:
    """The first five of many names.

    >>> shorten(["a", "b", "c", "d", "e", "f", "g"])
    'a, b, c, d, e and 2 more'
    """
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
