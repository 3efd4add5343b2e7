"""Images and the objects in them: boxes, classes and masks, from COCO's format or from the sample world.

Everything in an annotation file is checked when a source is opened, before anything is trained.
Shapes: T objects, H×W pixels.
"""

import pickle
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from labelflow.data.folder import shorten
from labelflow.data.images import read
from labelflow.data.world import World
from labelflow.tasks.dense.loading import is_world, open_world
from labelflow.tasks.detect.coco import Entry, draw, encode, evaluator, image_sizes, read_annotations, sound_objects
from labelflow.tasks.detect.files import find_annotations, find_images, given
from labelflow.tasks.detect.settings import DetectData

Item = TypeVar("Item")


class Sample(NamedTuple):
    image: Tensor  # (3, H, W) uint8
    boxes: Tensor  # (T, 4) float: left, top, right, bottom, in pixels
    labels: Tensor  # (T,) long: ≥ 0
    masks: Tensor  # (T, H, W) uint8: 0 or 1
    number: int  # the image's id


class Object(NamedTuple):
    box: list[float]  # left, top, width, height
    label: int
    segmentation: Any  # polygons or run lengths


class Picture(NamedTuple):
    """An image and its objects, from a file in COCO's format."""

    number: int
    file: str
    size: tuple[int, int]  # H, W
    objects: list[Object]  # without crowds


class Packed(Generic[Item]):
    """Items in one buffer. Processes that read them share it: no item's reference count is there to be touched, which
    would copy the page of memory that it lies on.

    >>> Packed(["cat", "dog"])[1]
    'dog'
    """

    def __init__(self, items: Iterable[Item]) -> None:
        pickled = [pickle.dumps(item, pickle.HIGHEST_PROTOCOL) for item in items]
        self._bounds = np.cumsum([0, *map(len, pickled)], dtype=np.int64)
        self._buffer = np.frombuffer(b"".join(pickled), np.uint8)

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __getitem__(self, index: int) -> Item:
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} is out of range: there are {len(self)} items")
        item: Item = pickle.loads(self._buffer[self._bounds[index] : self._bounds[index + 1]].data)
        return item


class Coco:
    """A data set in COCO's format. In training, crowds are left out, and images without objects unless kept."""

    def __init__(
        self, file: Path, images: Path | None = None, *, training: bool, keep_empty: bool = False, drop: bool = False
    ) -> None:
        content = read_annotations(file)
        annotated = len(content["annotations"])
        content["annotations"] = sound_objects(file, content, drop)
        self.file, self.dropped = file, annotated - len(content["annotations"])
        self.content = {} if training else content  # large, and only an evaluation asks for it
        names = {entry["id"]: str(entry["name"]) for entry in content["categories"]}
        self.categories = sorted(names)
        self.classes = [names[number] for number in self.categories]
        pictures = _pictures(content, self.categories)
        if not any(one.objects for one in pictures):
            what = f"objects to {'train' if training else 'evaluate'} on (crowds don't count)" if pictures else "images"
            raise ValueError(f"{file} has no {what}" + (f"; {self.dropped} were dropped" if self.dropped else ""))
        pictures = [one for one in pictures if not training or keep_empty or one.objects]
        self.folder = images = images or find_images(file, pictures[0].file)
        present = {path.relative_to(images).as_posix() for path in images.rglob("*") if path.is_file()}
        absent = [one.file for one in pictures if one.file not in present]
        if absent:
            raise ValueError(f"{images} lacks images of {file}: {shorten(absent)}")
        self.pictures = Packed(pictures)

    def __len__(self) -> int:
        return len(self.pictures)

    def load(self, index: int) -> Sample:
        number, _, (height, width), objects = self.pictures[index]
        image = torch.from_numpy(np.array(read(self.name(index)))).permute(2, 0, 1)
        if image.shape[1:] != (height, width):
            pixels = f"{image.shape[1]}×{image.shape[2]}"
            raise ValueError(f"{self.name(index)} has {pixels} pixels, but {self.file} says {height}×{width}")
        boxes = torch.tensor([one.box for one in objects], dtype=torch.float32).view(-1, 4)
        boxes = torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1).clamp_min(0)
        boxes = boxes.minimum(boxes.new_tensor([width, height, width, height]))
        labels = torch.tensor([one.label for one in objects], dtype=torch.long)
        masks = [draw(one.segmentation, (height, width)) for one in objects]
        drawn = torch.from_numpy(np.stack(masks)) if masks else torch.zeros(0, height, width, dtype=torch.uint8)
        return Sample(image, boxes, labels, drawn, number)

    def truth(self) -> Entry:
        """What is true of all images of an evaluation, in COCO's format: the file's own content. Missing areas
        are those of the masks, filled in once. Annotations are numbered from 1, since the evaluator takes the id 0 for
        none."""
        if not self.content:
            raise ValueError("annotations of all images are held for evaluation only, not for training")
        sizes = image_sizes(self.content)
        for number, one in enumerate(self.content["annotations"], 1):
            one["id"] = number
            if "area" not in one:
                one["area"] = float(draw(one["segmentation"], sizes[one["image_id"]]).sum())
        return self.content

    def blank(self) -> Sample:
        image = torch.zeros(3, 32, 32, dtype=torch.uint8)
        return Sample(image, torch.zeros(0, 4), torch.zeros(0, dtype=torch.long), image[:0], -1)

    def name(self, index: int) -> str:
        return str(self.folder / self.pictures[index].file)

    def files(self) -> list[str]:
        return [str(self.file), *(self.name(index) for index in range(len(self)))]


class WorldObjects:
    """Scenes of the sample world, in COCO's format."""

    dropped = 0

    def __init__(self, world: World) -> None:
        self.world, self.classes = world, list(world.classes)
        self.categories = list(range(1, 1 + len(self.classes)))

    def __len__(self) -> int:
        return len(self.world)

    def load(self, index: int) -> Sample:
        scene = self.world[index]
        masks = (scene.mask == np.arange(1, 1 + len(scene.objects))[:, None, None]).astype(np.uint8)
        image = torch.from_numpy(scene.image).permute(2, 0, 1)
        boxes, labels = torch.from_numpy(scene.boxes), torch.from_numpy(scene.objects)
        return Sample(image, boxes, labels, torch.from_numpy(masks), index)

    @cache  # noqa: B019 a source lives as long as the run
    def truth(self) -> Entry:
        return as_coco([self.load(index) for index in range(len(self))], self.categories, self.classes)

    def blank(self) -> Sample:
        return self.load(0)

    def name(self, index: int) -> str:
        return self.world.name(index)


def _pictures(content: Entry, categories: list[int]) -> list[Picture]:
    """Sorted by their ids."""
    labels = {number: label for label, number in enumerate(categories)}
    objects: dict[int, list[Object]] = defaultdict(list)
    for one in content["annotations"]:
        if not one["iscrowd"]:
            objects[one["image_id"]].append(Object(one["bbox"], labels[one["category_id"]], one["segmentation"]))
    sizes = image_sizes(content)
    files = {entry["id"]: entry["file_name"] for entry in content["images"]}
    return [Picture(number, files[number], sizes[number], objects[number]) for number in sorted(files)]


def open_source(data: DetectData, split: str) -> Coco | WorldObjects:
    """The part "train" or "val" of the data, checked: `ValueError` where something is wrong with it."""
    if is_world(data.source):
        return WorldObjects(open_world(data.source, split, 256))
    evaluator()  # is there, or ValueError
    training = split == "train"
    file, images = (data.train_json, data.train_images) if training else (data.val_json, data.val_images)
    root = Path(data.source)
    found = given(root, file) if file else find_annotations(root, split)
    where = given(root, images) if images else None
    return Coco(found, where, training=training, keep_empty=data.keep_empty, drop=data.bad_objects == "drop")


def as_coco(samples: list[Sample], categories: list[int], classes: list[str]) -> Entry:
    """Samples in COCO's format, masks as run lengths."""
    images = [{"id": one.number, "height": one.image.shape[1], "width": one.image.shape[2]} for one in samples]
    annotations: list[Entry] = []
    for one in samples:
        parts = zip(
            one.boxes.tolist(), one.labels.tolist(), encode(one.masks), one.masks.sum((1, 2)).tolist(), strict=True
        )
        for (left, top, right, bottom), label, runs, area in parts:
            place = {"bbox": [left, top, right - left, bottom - top], "segmentation": runs, "area": area, "iscrowd": 0}
            owner = {"id": len(annotations) + 1, "image_id": one.number, "category_id": categories[label]}
            annotations.append({**owner, **place})
    named = [{"id": number, "name": name} for number, name in zip(categories, classes, strict=True)]
    return {"images": images, "annotations": annotations, "categories": named}
