"""The images of a folder, as training lists them: train/ and val/, or class folders; or just images."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from labelflow.data.folder import Folder, shorten
from labelflow.data.images import EXTENSIONS
from labelflow.data.scan import image_files


class Listing(NamedTuple):
    """Shapes: N images."""

    root: Path
    paths: list[str]  # (N,)
    classes: list[str]  # none where the images lie in no class folders
    labels: ndarray  # (N,) places in classes
    splits: dict[str, Path]  # where the class folders of train and val are; of "" where the folder is not divided
    parts: ndarray  # (N,) places in splits

    def below(self, path: str) -> str:
        """The name of a file below the folder."""
        return path.removeprefix(os.path.join(self.root, ""))

    def class_counts(self) -> ndarray:
        """(classes, splits): images"""
        counts = np.zeros((len(self.classes), len(self.splits)), np.int64)
        if self.classes:
            np.add.at(counts, (self.labels, self.parts), 1)
        return counts


def list_images(root: Path | str) -> Listing:
    """ValueError if training could not list them either, except that class folders may be missing."""
    root = Path(root)
    if not root.is_dir():
        raise ValueError(f"there is no folder {root}; give one of images, with a folder for each class")
    if not any(path.is_dir() and not path.name.startswith(".") for path in root.iterdir()):
        paths = [str(root / name) for name in image_files(root)]
        if not paths:
            raise ValueError(f"{root} has no images; they end in {shorten(sorted(EXTENSIONS))}")
        return Listing(root, paths, [], np.zeros(len(paths), np.intp), {"": root}, np.zeros(len(paths), np.intp))
    train = Folder(root, "train")
    if train.folder == root:  # class folders, and nothing above them
        halves = {"": Folder(root, "val", val_fraction=1)}
    else:
        halves = {"train": train, "val": Folder(root, "val")}
    return Listing(
        root,
        [path for half in halves.values() for path in half.files()],
        list(train.classes),
        np.array([label for half in halves.values() for label in _labels(half)], np.intp),
        {name: half.folder for name, half in halves.items()},
        np.repeat(np.arange(len(halves)), [len(half) for half in halves.values()]),
    )


def _labels(half: Folder) -> Iterator[int]:
    """Of each file, by the class folder that it lies in."""
    places = {name: place for place, name in enumerate(half.classes)}
    above = os.path.join(half.folder, "")
    return (places[path.removeprefix(above).partition(os.sep)[0]] for path in half.files())
