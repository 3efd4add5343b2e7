"""What is wrong with images, from what is known of their files.

Shapes: N files.
"""

import os
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from labelflow.checking.files import DAMAGED, INACCESSIBLE, NOT_AN_IMAGE, TOO_LARGE, Files
from labelflow.checking.listing import Listing
from labelflow.data.checked import UNREADABLE
from labelflow.data.folder import check_utf8
from labelflow.data.scan import below

DUPLICATES = SEVERAL_CLASSES, LEAK, DUPLICATE = "in several classes", "in train and val", "duplicate"
TINY, HUGE, WRONG_EXTENSION = "tiny", "huge", "wrong extension"
NO_SPLIT, NO_CLASSES, EMPTY_CLASS = "train or val missing", "no class folders", "empty class"
NOT_IN_TRAIN, NOT_IN_VAL, NOT_UTF8 = "class not in train", "class not in val", "name not UTF-8"
UNKNOWN_EXTENSION = "unknown extension"


class Kind(NamedTuple):
    """Of problems."""

    level: str  # error: it stops or spoils training; warning: look at it
    about: str


KINDS = {
    NO_SPLIT: Kind("error", "Training needs train and val, or class folders only."),
    NO_CLASSES: Kind("error", "Training needs a folder of images for each class."),
    EMPTY_CLASS: Kind("error", "The class folder has no images; training refuses it."),
    NOT_IN_TRAIN: Kind("error", "The class is in val, but not in train; training refuses it."),
    NOT_UTF8: Kind("error", "The name of the class folder is not UTF-8; training refuses it."),
    INACCESSIBLE: Kind("error", "The file can’t be opened; training stops at it."),
    NOT_AN_IMAGE: Kind("error", "The file has an image extension but is not an image; training stops at it."),
    DAMAGED: Kind("error", "The file is truncated or broken; training stops at it."),
    TOO_LARGE: Kind("error", "More pixels than PIL opens, perhaps a decompression bomb; training stops at it."),
    SEVERAL_CLASSES: Kind("error", "The same contents lie in several classes, so that a label is wrong."),
    LEAK: Kind("error", "The same contents lie in train and val, so that accuracies are too high."),
    DUPLICATE: Kind("warning", "The same contents lie in one class several times."),
    NOT_IN_VAL: Kind("warning", "The class is trained on, but never evaluated on."),
    TINY: Kind("warning", "A side is shorter than --min-side."),
    HUGE: Kind("warning", "More than --max-megapixels, which are slow to read in every epoch."),
    WRONG_EXTENSION: Kind("warning", "The contents have another format than the name says; training reads it anyway."),
    UNKNOWN_EXTENSION: Kind("warning", "Images by their names, which training does not read: convert or rename them."),
}
UNREAD = frozenset({".avif", ".heic", ".heif", ".jfif", ".jp2", ".jpe", ".jxl", ".tga"})  # other images
FORMATS = {  # that an extension stands for, in PIL's words; an MPO is a JPEG with more of them behind it
    **dict.fromkeys((".jpg", ".jpeg"), ("JPEG", "MPO")),
    **dict.fromkeys((".tif", ".tiff"), ("TIFF",)),
    **dict.fromkeys((".ppm", ".pgm"), ("PPM",)),
    **{f".{name}": (name.upper(),) for name in ("png", "webp", "bmp", "gif")},
}


class Finding(NamedTuple):
    """Of a file, or of a class folder."""

    file: str
    problem: str  # one of KINDS
    detail: str


def find_problems(listing: Listing, files: Files, min_side: int, max_megapixels: float) -> list[Finding]:
    """All, in the order of KINDS and of the files."""
    found = [
        *_unreadable(listing, files),
        *_duplicates(listing, files.rows),
        *_sizes(listing, files.rows, min_side, max_megapixels),
        *_wrong_extensions(listing, files.rows),
        *_splits(listing),
        *_classes(listing),
        *_unknown_extensions(listing),
    ]
    order = {kind: place for place, kind in enumerate(KINDS)}
    return sorted(found, key=lambda problem: order[problem.problem])


def readable(rows: ndarray) -> ndarray:
    """(N,) bool"""
    return rows["flags"] & UNREADABLE == 0


def duplicates(rows: ndarray) -> list[list[int]]:
    """Places of readable files with the same contents, in groups."""
    places = np.flatnonzero(readable(rows))
    _, group, counts = np.unique(rows["content"][places], return_inverse=True, return_counts=True)
    again = np.flatnonzero(counts[group] > 1)
    order = again[np.argsort(group[again], kind="stable")]
    ends = np.flatnonzero(np.diff(group[order])) + 1
    return sorted(part.tolist() for part in np.split(places[order], ends) if len(part))


def _unreadable(listing: Listing, files: Files) -> Iterator[Finding]:
    for place, (kind, reason) in sorted(files.unreadable.items()):
        yield Finding(listing.paths[place], kind, reason)


def _duplicates(listing: Listing, rows: ndarray) -> Iterator[Finding]:
    """Each file but the first of a group, compared with the first."""
    for first, *others in duplicates(rows):
        detail = f"same contents as {below(listing.paths[first], listing.root)}"
        for place in others:
            kinds = []
            one, other = listing.labels[[place, first]].tolist()
            if one != other and min(one, other) >= 0:
                kinds.append(SEVERAL_CLASSES)
            if listing.parts[place] != listing.parts[first]:
                kinds.append(LEAK)
            for kind in kinds or [DUPLICATE]:
                yield Finding(listing.paths[place], kind, detail)


def _sizes(listing: Listing, rows: ndarray, min_side: int, max_megapixels: float) -> Iterator[Finding]:
    tiny = np.minimum(rows["width"], rows["height"]) < min_side
    huge = rows["width"].astype(np.int64) * rows["height"] > max_megapixels * 1e6
    for kind, which in ((TINY, tiny), (HUGE, huge)):
        for place in np.flatnonzero(which & readable(rows)).tolist():
            yield Finding(listing.paths[place], kind, f"{rows['width'][place]}×{rows['height'][place]} pixels")


def _wrong_extensions(listing: Listing, rows: ndarray) -> Iterator[Finding]:
    for path, format, is_readable in zip(listing.paths, rows["format"].tolist(), readable(rows).tolist(), strict=True):
        extension = os.path.splitext(path)[1]
        if is_readable and format.decode() not in FORMATS[extension.lower()]:
            yield Finding(path, WRONG_EXTENSION, f"a {format.decode()} file")


def _unknown_extensions(listing: Listing) -> Iterator[Finding]:
    for folder in listing.splits.values():
        names = (name for _, _, found in os.walk(folder) for name in found if not name.startswith("."))
        counts = Counter(os.path.splitext(name)[1].lower() for name in names)
        for extension in sorted(counts.keys() & UNREAD):
            yield Finding(str(folder), UNKNOWN_EXTENSION, f"not read: {counts[extension]} × {extension}")


def _splits(listing: Listing) -> Iterator[Finding]:
    if len(listing.splits) == 1 and "" not in listing.splits:
        (there,) = listing.splits
        missing = "val" if there == "train" else "train"
        yield Finding(str(listing.root / missing), NO_SPLIT, f"there is {there} only")
    for (split, folder), count in zip(listing.splits.items(), listing.class_counts().sum(0).tolist(), strict=True):
        if split and not count:
            yield Finding(str(folder), NO_CLASSES, "no images in class folders")


def _classes(listing: Listing) -> Iterator[Finding]:
    counts = listing.class_counts()  # (classes, splits)
    for part, (split, folder) in enumerate(listing.splits.items()):
        is_empty = counts[:, part] == 0
        if split and is_empty.all():  # told above
            continue
        for label in np.flatnonzero(is_empty).tolist():
            place = folder / listing.classes[label]
            kind = NOT_IN_VAL if split == "val" else EMPTY_CLASS if place.is_dir() else NOT_IN_TRAIN
            yield Finding(str(place), kind, "no images")
    for name in listing.classes:
        try:
            check_utf8(name)
        except ValueError:
            folders = (folder / name for folder in listing.splits.values())
            yield from (Finding(str(place), NOT_UTF8, "rename it") for place in folders if place.is_dir())
