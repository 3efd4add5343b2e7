"""A folder of images, one folder a class."""

import glob
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from labelflow.data.images import EXTENSIONS, Decode, to_rgb

SPLITS = {"train": ("train", "training"), "val": ("val", "valid", "validation", "test")}


class Listed:
    """Files of images and their labels, which are places in `classes`."""

    def __init__(self, root: Path, samples: list[tuple[str, int]], classes: Sequence[str]) -> None:
        self.root, self.samples, self.classes = root, samples, classes

    def __len__(self) -> int:
        return len(self.samples)

    def load(self, index: int, decode: Decode = to_rgb) -> tuple[Any, int]:
        path, label = self.samples[index]
        with Image.open(path) as image:
            return decode(image), label

    def name(self, index: int) -> str:
        return self.samples[index][0]

    def files(self) -> list[str]:
        return [path for path, _ in self.samples]

    def key(self, index: int) -> str:
        return os.path.relpath(self.samples[index][0], self.root)


class Folder(Listed):
    """`root/train/CLASS/…` and `root/val/CLASS/…`; or `root/CLASS/…`, of which a part is set aside for validation.

    That part depends on the files' names and the seed alone: in each class the files with the smallest hashes are set
    aside, so that new files move few old ones. A val_fraction of 1 is all of it, or of its val/. The samples are sorted
    by name.
    """

    def __init__(self, root: Path | str, split: str = "train", val_fraction: float = 0.1, seed: int = 0) -> None:
        super().__init__(Path(root), [], [])
        if not self.root.is_dir():
            raise ValueError(
                f"there is no folder {self.root}; give one that holds a folder of images for each class: --data FOLDER"
            )
        _check_utf8(str(root))
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
        empty = []
        for index, name in enumerate(self.classes):
            files = image_files(self.folder / name)
            if not files and self.folder == (halves["train"] or self.root):
                empty.append(name)
            if half is None and not whole:
                if not 0 < val_fraction < 1:
                    raise ValueError(f"val_fraction must lie between 0 and 1, not {val_fraction}")
                aside = set(
                    sorted(files, key=lambda file: order_of(seed, f"{name}/{file}"))[: aside_count(files, val_fraction)]
                )
                files = [file for file in files if (file in aside) == (split == "val")]
            folder = str(self.folder / name)
            self.samples += [(os.path.join(folder, file), index) for file in files]
        if empty:
            raise ValueError(
                f"{halves['train'] or self.root} has class folders without images: {shorten(empty)}; "
                f"images end in {shorten(sorted(EXTENSIONS))}"
            )
        if not self.samples:
            raise ValueError(f"{self.folder} has too few images: a class needs one to train on and one to evaluate on")

    def key(self, index: int) -> str:
        """`CLASS/FILE` without its ending, as the released label maps are called."""
        path, label = self.samples[index]
        below = path[len(str(self.folder / self.classes[label])) + 1 :]
        return f"{self.classes[label]}/{os.path.splitext(below)[0].replace(os.sep, '/')}"


def first_folder(root: Path, names: tuple[str, ...]) -> Path | None:
    return next((root / name for name in names if (root / name).is_dir()), None)


def _classes(root: Path) -> list[str]:
    names = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise ValueError(f"{root} has no class folders; it should hold one folder of images for each class")
    for name in names:
        _check_utf8(name)
    return names


def _check_utf8(name: str) -> None:
    """A run writes the names of its classes and of its data; those of files may be any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the name of a folder is not UTF-8: rename {name!r}") from None


def image_files(folder: Path) -> list[str]:
    """Paths below the folder, sorted, hidden ones left out. A class that a split lacks has none."""
    found = []
    for where, folders, files in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in folders:
            _check_link(os.path.join(where, name))
        below = os.path.relpath(where, folder)
        images = [name for name in files if _is_image(name) and name[0] != "."]
        found += [os.path.normpath(os.path.join(below, name)) for name in images]
    return sorted(found)


def _check_link(path: str) -> None:
    """One that leads back would lead to the same images again and again."""
    target = os.path.realpath(path)
    if os.path.islink(path) and Path(os.path.realpath(os.path.dirname(path))).is_relative_to(target):
        raise ValueError(f"{path} is a link to {target}, which it lies in; remove it")


def find_images(given: Path | str) -> list[str]:
    """A file; the images below a folder; or those that a pattern such as `photos/**/*.jpg` matches, sorted."""
    path = str(given)
    if os.path.exists(path) and not os.path.isdir(path):
        return [path]
    matches = [path] if os.path.isdir(path) else sorted(glob.glob(path, recursive=True))
    found = dict.fromkeys(file for match in matches for file in _images_of(match))
    if found:
        return list(found)
    if os.path.isdir(path):
        raise ValueError(f"{path} has no images; they end in {', '.join(sorted(EXTENSIONS))}")
    raise ValueError(f"no image matches {path}" if glob.has_magic(path) else f"there is no file or folder {path}")


def _images_of(path: str) -> list[str]:
    """Of a folder, and of all below it; or the file itself, if it is an image."""
    if os.path.isdir(path):
        return [os.path.join(path, name) for name in image_files(Path(path))]
    return [path] if _is_image(path) else []


def _is_image(file: str) -> bool:
    return os.path.splitext(file)[1].lower() in EXTENSIONS


def aside_count(files: list[str], fraction: float) -> int:
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
