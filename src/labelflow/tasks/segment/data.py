"""Images and their masks: one class id for each pixel, 255 where none counts.

Sizes, class ids and which classes occur are checked when a source is opened, before anything is trained.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from labelflow.data.folder import shorten
from labelflow.data.images import read
from labelflow.data.world import World
from labelflow.tasks.dense.loading import DenseSource, is_world, open_world
from labelflow.tasks.segment.layouts import LAYOUTS, Layout, looks_like
from labelflow.tasks.segment.metrics import VOID
from labelflow.tasks.segment.settings import SegmentData

EXIF_TURN = 0x0112
EXIF_FIRST = {"JPEG", "MPO", "WEBP"}  # formats that have it before the pixels; a PNG may; a TIFF's size is turned


class Sample(NamedTuple):
    image: Tensor  # (3, H, W) uint8
    mask: Tensor  # (H, W) uint8: a class, or 255


class Pairs:
    """A data set of image files and mask files."""

    absent: Sequence[str] = ()  # classes that no mask shows, where all of them were read

    def __init__(self, layout: Layout) -> None:
        self.pairs, self.classes, self.meaning = layout
        self.codes = self.meaning.astype(np.uint8)  # (256,)

    def __len__(self) -> int:
        return len(self.pairs)

    def load(self, index: int) -> Sample:
        image = torch.from_numpy(np.array(read(self.pairs[index][0]))).permute(2, 0, 1)
        mask = self.mask(index)
        if mask.shape != image.shape[1:]:
            raise ValueError(_misfit(self.pairs[index], tuple(image.shape[1:]), tuple(mask.shape)))
        return Sample(image, mask)

    def mask(self, index: int) -> Tensor:
        """(H, W) uint8"""
        values, _ = self.values(index)
        return torch.from_numpy(self.codes[values.astype(np.uint8, copy=False)])

    def values(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """A mask as its file holds it, (H, W), and the values that occur in it, sorted; all of them have a meaning."""
        path = self.pairs[index][1]
        with Image.open(path) as file:
            if len(file.getbands()) > 1:
                raise ValueError(f"{path} is a picture in {file.mode}; a mask has one channel, of class ids")
            values = np.array(file)
        ids = _ids(values)
        unknown = ids[(ids < 0) | (ids > 255) | (self.meaning[ids.clip(0, 255)] < 0)]
        if len(unknown):
            known = np.flatnonzero((self.meaning >= 0) & (self.meaning != VOID))
            raise ValueError(
                f"{path} has the class ids {shorten([str(one) for one in unknown])}, which are not among the "
                f"{len(self.classes)} classes (ids {known[0]} to {known[-1]}); fix the mask or the list of classes"
            )
        return values, ids

    def blank(self) -> Sample:
        return Sample(torch.zeros(3, 32, 32, dtype=torch.uint8), torch.full((32, 32), VOID, dtype=torch.uint8))

    def name(self, index: int) -> str:
        return str(self.pairs[index][0])

    def files(self) -> list[str]:
        return [str(path) for pair in self.pairs for path in pair]


class WorldMasks:
    """Scenes of the sample world: background is class 0, its objects' classes follow."""

    absent: Sequence[str] = ()

    def __init__(self, world: World) -> None:
        self.world, self.classes = world, ["background", *world.classes]

    def __len__(self) -> int:
        return len(self.world)

    def load(self, index: int) -> Sample:
        scene = self.world[index]
        classes = np.concatenate([[0], scene.objects + 1]).astype(np.uint8)
        return Sample(torch.from_numpy(scene.image).permute(2, 0, 1), torch.from_numpy(classes[scene.mask]))

    def blank(self) -> Sample:
        return self.load(0)

    def name(self, index: int) -> str:
        return self.world.name(index)


def open_source(data: SegmentData, split: str) -> DenseSource:
    """The part "train" or "val" of the data, checked: `ValueError` where images and masks do not fit."""
    if is_world(data.source):
        return WorldMasks(open_world(data.source, split, data.short))
    root = Path(data.source)
    if not root.is_dir():
        raise ValueError(f"there is no folder {root}; give --data FOLDER, or --data world, which needs no files")
    name = data.layout if data.layout != "auto" else looks_like(root)
    source = Pairs(LAYOUTS[name](root, data, split))
    if not len(source):
        raise ValueError(f"{root} has no images for the split {split!r}")
    found = check(source)
    _check_classes(root, source, sorted(set().union(*found)), split == "train")
    if all(found) and len(found) == len(source):
        shown = {source.meaning[value] for values in found for value in values}
        source.absent = [name for number, name in enumerate(source.classes) if number not in shown]
    return source


def check(source: Pairs, masks: int = 2000) -> list[set[int]]:
    """Every image has the size of its mask, and the masks (`masks` of them, evenly spread) have known ids only: the
    values in each, none where it can't be read."""
    indices = range(len(source))
    with ThreadPoolExecutor(8) as threads:
        for problem in threads.map(lambda index: _problem(source.pairs[index]), indices):
            if problem:
                raise ValueError(problem)
        return list(threads.map(partial(_values, source), indices[:: -(-len(source) // masks)]))


def _values(source: Pairs, index: int) -> set[int]:
    try:
        return set(source.values(index)[1].tolist())
    except OSError:  # a damaged file is reported when it is read, and skipped if that is allowed
        return set()


def _check_classes(root: Path, source: Pairs, values: list[int], training: bool) -> None:
    """More than one class occurs: where objects are 255, say, they do not count. A few images to evaluate on may all be
    of one class, but then every pixel is."""
    shown = {source.meaning[value] for value in values} - {VOID}
    void = [str(value) for value in values if source.meaning[value] == VOID]
    if not values or len(shown) > 1 or (not training and not void):
        return
    classes = f"only the class {source.classes[shown.pop()]!r}" if shown else "no class"
    told = shorten([str(value) for value in values]) + (f" (void: {shorten(void)})" if void else "")
    known = [f"{value} {source.classes[number]}" for value, number in enumerate(source.meaning) if 0 <= number < VOID]
    raise ValueError(
        f"{root}: the masks to {'train' if training else 'evaluate'} on show {classes}: their values are {told}; "
        f"a value should be the number of a class: {shorten(known)}"
    )


def _ids(values: np.ndarray) -> np.ndarray:
    """The integers that occur, sorted."""
    if np.can_cast(values.dtype, np.uint8):  # masks are large, and this is quicker
        return np.flatnonzero(np.bincount(values.ravel()))
    return np.unique(values.astype(np.int64))


def _problem(pair: tuple[Path, Path]) -> str:
    """Why a pair does not fit, from the headers of its files alone."""
    sizes = []
    for path in pair:
        try:
            with Image.open(path) as file:
                size = file.size[::-1]
                has_exif = file.format in EXIF_FIRST or "exif" in file.info
                turned = path == pair[0] and has_exif and file.getexif().get(EXIF_TURN, 1) > 4
        except OSError:
            return ""  # as above
        sizes.append(size[::-1] if turned else size)
    return _misfit(pair, *sizes) if sizes[0] != sizes[1] else ""


def _misfit(pair: tuple[Path, Path], image: tuple[int, ...], mask: tuple[int, ...]) -> str:
    return (
        f"{pair[0]} has {image[0]}×{image[1]} pixels, but its mask {pair[1]} has {mask[0]}×{mask[1]}; make both the "
        "same (images are rotated as their EXIF data says)"
    )
