"""The images of a folder, as training lists them: train/ and val/, or class folders; or just images."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from labelflow.data.folder import SPLITS, check_utf8, first_folder, shorten
from labelflow.data.images import EXTENSIONS
from labelflow.data.index import FileIndex, Paths, open_index
from labelflow.data.scan import image_files


class Listing(NamedTuple):
    """Shapes: N images."""

    root: Path
    paths: list[str]  # (N,)
    classes: list[str]  # none where the images lie in no class folders
    labels: ndarray  # (N,) places in classes; -1 of images in no class folder
    splits: dict[str, Path]  # where the class folders of train and val are; of "" where the folder is not divided
    parts: ndarray  # (N,) places in splits

    def class_counts(self) -> ndarray:
        """(classes, splits): images"""
        counts = np.zeros((len(self.classes), len(self.splits)), np.int64)
        labelled = self.labels >= 0
        np.add.at(counts, (self.labels[labelled], self.parts[labelled]), 1)
        return counts


def list_images(root: Path | str) -> Listing:
    """All images that training would list, and those of folders that it would refuse: what is wrong with these is told
    by `find_problems`. ValueError if there are none."""
    root = Path(root)
    if not root.is_dir():
        raise ValueError(f"there is no folder {root}; give one of images, with a folder for each class")
    halves = {name: folder for name, names in SPLITS.items() if (folder := first_folder(root, names))}
    splits = halves or {"": root}
    indexes = [open_index(folder, lambda line: None) for folder in splits.values()]
    classes = sorted({name for index in indexes for name in index.classes})
    parts = [_files(folder, index, classes) for folder, index in zip(splits.values(), indexes, strict=True)]
    paths = [path for names, _ in parts for path in names]
    if not paths:
        raise ValueError(f"{root} has no images; they end in {shorten(sorted(EXTENSIONS))}")
    if classes:
        check_utf8(str(root))
    labels = np.concatenate([labels for _, labels in parts])
    return Listing(
        root, paths, classes, labels, splits, np.repeat(np.arange(len(parts)), [len(one) for one, _ in parts])
    )


def _files(folder: Path, index: FileIndex, classes: list[str]) -> tuple[Sequence[str], ndarray]:
    """Paths and labels; of images in no class folder, if class folders have none."""
    if not len(index):
        paths = [str(folder / name) for name in image_files(folder)]
        return paths, np.full(len(paths), -1)
    places = {name: place for place, name in enumerate(classes)}
    labels = np.repeat([places[name] for name in index.classes], np.diff(index.starts))
    return Paths(index, [os.path.join(folder, name, "") for name in classes], labels, range(len(index))), labels
