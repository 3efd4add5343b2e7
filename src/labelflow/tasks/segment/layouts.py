"""How folders of images and masks are laid out: one layout, one function, one line in LAYOUTS."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from labelflow.data.folder import SPLITS, aside_count, first_folder, order_of, shorten
from labelflow.data.scan import image_files
from labelflow.tasks.segment.metrics import VOID
from labelflow.tasks.segment.settings import SegmentData

CAMVID = ("sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist")


class Layout(NamedTuple):
    """The files of one split, and what the values in their masks mean."""

    pairs: list[tuple[Path, Path]]  # image and mask
    classes: list[str]
    meaning: np.ndarray  # (256,) int64: the class of each value, 255 where it does not count, -1 where it is unknown


def _ade20k(root: Path, data: SegmentData, split: str) -> Layout:
    """images/training|validation, annotations/training|validation; 0 does not count, 1 to 150 are the classes."""
    part = "training" if split == "train" else "validation"
    names = [f"class {number}" for number in range(1, 151)]
    table = root / "objectInfo150.txt"
    if table.exists():
        names = [line.split("\t")[-1].strip() for line in _lines(table)[1:] if line.strip()]
        if len(names) != 150:
            raise ValueError(f"{table} names {len(names)} classes; ADE20K has 150")
    return Layout(pair(root / "images" / part, root / "annotations" / part), names, _meaning(150, first=1, void=(0,)))


def _camvid(root: Path, data: SegmentData, split: str) -> Layout:
    """train, trainannot, val, valannot; 11 does not count."""
    return Layout(pair(root / split, root / f"{split}annot"), list(CAMVID), _meaning(11, void=(11,)))


def _pets(root: Path, data: SegmentData, split: str) -> Layout:
    """images, trimaps; trainval.txt and test.txt. 1 is the pet, 2 the background; 3, between them, does not count."""
    lines = _lines(root / ("trainval.txt" if split == "train" else "test.txt"))
    names = {line.split()[0] for line in lines if line.strip() and not line.startswith("#")}
    meaning = np.full(256, -1)
    meaning[[1, 2, 3]] = 1, 0, VOID
    return Layout(pair(root / "images", root / "trimaps", names), ["background", "pet"], meaning)


def _folder(root: Path, data: SegmentData, split: str) -> Layout:
    """images/ and masks/, each with train/ and val/ or not, or within train/ and val/."""
    names = _class_names(root, data)
    first = int(0 in data.void)
    if any(first <= value < first + len(names) or not 0 <= value <= 255 for value in data.void if value):
        raise ValueError(
            f"void {data.void} takes values away from the {len(names)} classes, {first} to {first + len(names) - 1}"
        )
    meaning = _meaning(len(names), first, data.void)
    for images, masks in ((f"images/{split}", f"masks/{split}"), (f"{split}/images", f"{split}/masks")):
        where = [_split_folder(root, one, split) for one in (images, masks)]
        if where[0] and where[1]:
            return Layout(pair(where[0], where[1]), names, meaning)
    if any(first_folder(root / inside, options) for inside in ("images", ".") for options in SPLITS.values()):
        raise ValueError(f"{root} has train or val folders, but not both with images and masks for {split!r}")
    if not 0 < data.val_fraction < 1:
        raise ValueError(f"val_fraction must lie between 0 and 1, not {data.val_fraction}")
    pairs = pair(root / "images", root / "masks")
    by_chance = sorted(pairs, key=lambda one: order_of(data.split_seed, one[0].relative_to(root / "images").as_posix()))
    aside = set(by_chance[: aside_count(pairs, data.val_fraction)])
    return Layout([one for one in pairs if (one in aside) == (split == "val")], names, meaning)


LAYOUTS: dict[str, Callable[[Path, SegmentData, str], Layout]] = {
    "ade20k": _ade20k,
    "camvid": _camvid,
    "pets": _pets,
    "folder": _folder,
}


def looks_like(root: Path) -> str:
    marks = {"ade20k": "annotations/training", "camvid": "trainannot", "pets": "trimaps"}
    return next((name for name, mark in marks.items() if (root / mark).is_dir()), "folder")


def _split_folder(root: Path, path: str, split: str) -> Path | None:
    """`images/val`, or what else a split is called."""
    paths = (root / path.replace(split, option) for option in SPLITS["val" if split == "val" else "train"])
    return next((one for one in paths if one.is_dir()), None)


def pair(images: Path, masks: Path, only: set[str] | None = None) -> list[tuple[Path, Path]]:
    """Images with the masks of the same names, whatever their endings, sorted. `only` those without endings."""
    for folder in (images, masks):
        if not folder.is_dir():
            raise ValueError(f"there is no folder {folder}; images and masks should lie in {images} and {masks}")
    found = {Path(name).with_suffix("").as_posix(): masks / name for name in image_files(masks)}
    files = [images / name for name in image_files(images)]
    stems = [file.relative_to(images).with_suffix("").as_posix() for file in files]
    if only is not None:
        absent = sorted(only - set(stems))
        if absent:
            raise ValueError(f"{images} lacks images that are listed: {shorten(absent)}")
    chosen = [(file, stem) for file, stem in zip(files, stems, strict=True) if only is None or stem in only]
    if not chosen:
        raise ValueError(f"{images} has no images")
    missing = [stem for _, stem in chosen if stem not in found]
    if missing:
        raise ValueError(
            f"{masks} has no masks for {shorten(missing)}: a mask has the name of its image, with any extension"
        )
    return [(file, found[stem]) for file, stem in chosen]


def _class_names(root: Path, data: SegmentData) -> list[str]:
    if data.classes.isdigit():
        names = [f"class {number}" for number in range(int(data.classes))]
    else:
        path = Path(data.classes) if data.classes else root / "classes.txt"
        if not path.is_file():
            raise ValueError(f"there is no {path}: name the classes there, one a line, or say how many: --classes N")
        names = [line.strip() for line in _lines(path) if line.strip()]
    if not 2 <= len(names) <= VOID or len(set(names)) < len(names):
        raise ValueError(f"there should be 2 to {VOID} classes of different names, not {len(names)}")
    return names


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}") from None


def _meaning(classes: int, first: int = 0, void: tuple[int, ...] = (VOID,)) -> np.ndarray:
    """(256,): the values from `first` on are the classes."""
    meaning = np.full(256, -1)
    meaning[first : first + classes] = np.arange(classes)
    meaning[list(void)] = VOID
    return meaning
