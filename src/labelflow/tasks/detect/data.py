"""Images and the objects in them: boxes, classes and masks, from COCO's format or from the sample world.

Everything in an annotation file is checked when a source is opened, before anything is trained.
Shapes: T objects, H×W pixels.
"""

from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from labelflow.data.folder import few
from labelflow.data.images import read
from labelflow.data.world import World
from labelflow.tasks.dense.loading import is_world, open_world
from labelflow.tasks.detect.coco import Entry, box_problem, draw, encode, evaluator, read_annotations
from labelflow.tasks.detect.files import find_annotations, find_images, given
from labelflow.tasks.detect.settings import DetectData


class Sample(NamedTuple):
    image: Tensor  # (3, H, W) uint8
    boxes: Tensor  # (T, 4) float: left, top, right, bottom, in pixels
    labels: Tensor  # (T,) long: from 0 on
    masks: Tensor  # (T, H, W) uint8: 0 or 1
    number: int  # the image's id


class Coco:
    """A data set in COCO's format. In training, crowds are left out, and images without objects unless kept."""

    def __init__(
        self, file: Path, images: Path | None = None, *, training: bool, keep_empty: bool = False, drop: bool = False
    ) -> None:
        self.file, self.content = file, read_annotations(file)
        names = {entry["id"]: str(entry["name"]) for entry in self.content["categories"]}
        self.categories = sorted(names)
        self.classes = [names[number] for number in self.categories]
        self.objects: dict[int, list[Entry]] = defaultdict(list)
        sizes = {entry["id"]: (entry["height"], entry["width"]) for entry in self.content["images"]}
        for entry in self.content["annotations"]:
            problem = box_problem(entry["bbox"], sizes[entry["image_id"]])
            if problem and not drop:
                raise ValueError(
                    f"{file}: the box of annotation {entry['id']}, {entry['bbox']}, {problem}; mend it, or leave such "
                    "boxes out with --bad-boxes drop"
                )
            if not problem and not entry.get("iscrowd", 0):
                self.objects[entry["image_id"]].append(entry)
        everything = sorted(self.content["images"], key=lambda entry: entry["id"])
        self.images = [entry for entry in everything if not training or keep_empty or self.objects[entry["id"]]]
        if not any(self.objects.values()):
            what = f"objects to {'train' if training else 'evaluate'} on: crowds are none" if everything else "images"
            raise ValueError(f"{file} has no {what}")
        self.folder = images = images or find_images(file, self.images[0]["file_name"])
        present = {path.relative_to(images).as_posix() for path in images.rglob("*") if path.is_file()}
        absent = [entry["file_name"] for entry in self.images if entry["file_name"] not in present]
        if absent:
            raise ValueError(f"{images} lacks images of {file}: {few(absent)}")

    def __len__(self) -> int:
        return len(self.images)

    def load(self, index: int) -> Sample:
        entry = self.images[index]
        image = torch.from_numpy(np.array(read(self.name(index)))).permute(2, 0, 1)
        height, width = entry["height"], entry["width"]
        if image.shape[1:] != (height, width):
            told = f"{image.shape[1]}×{image.shape[2]}"
            raise ValueError(f"{self.name(index)} has {told} pixels, but {self.file} says {height}×{width}")
        objects = self.objects[entry["id"]]
        boxes = torch.tensor([one["bbox"] for one in objects], dtype=torch.float32).view(-1, 4)
        boxes = torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1).clamp_min(0)
        boxes = boxes.minimum(boxes.new_tensor([width, height, width, height]))
        labels = torch.tensor([self.categories.index(one["category_id"]) for one in objects], dtype=torch.long)
        masks = [draw(one["segmentation"], (height, width)) for one in objects]
        drawn = torch.from_numpy(np.stack(masks)) if masks else torch.zeros(0, height, width, dtype=torch.uint8)
        return Sample(image, boxes, labels, drawn, entry["id"])

    def truth(self) -> Entry:
        """What is true of all its images, in COCO's format: the file's own content. Areas that it does not tell are
        those of the masks."""
        shapes = {entry["id"]: (entry["height"], entry["width"]) for entry in self.content["images"]}
        filled = [
            {"iscrowd": 0, **one}
            if "area" in one
            else {"iscrowd": 0, **one, "area": float(draw(one["segmentation"], shapes[one["image_id"]]).sum())}
            for one in self.content["annotations"]
        ]
        return {**self.content, "annotations": filled}

    def blank(self) -> Sample:
        image = torch.zeros(3, 32, 32, dtype=torch.uint8)
        return Sample(image, torch.zeros(0, 4), torch.zeros(0, dtype=torch.long), image[:0], -1)

    def name(self, index: int) -> str:
        return str(self.folder / self.images[index]["file_name"])


class WorldObjects:
    """Scenes of the sample world, as COCO would tell of them."""

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


def open_source(data: DetectData, split: str) -> Coco | WorldObjects:
    """The part "train" or "val" of the data, checked: `ValueError` where something is wrong with it."""
    if is_world(data.data):
        return WorldObjects(open_world(data.data, split, 256))
    evaluator()  # is there, or ValueError
    training = split == "train"
    file, images = (data.train_json, data.train_images) if training else (data.val_json, data.val_images)
    root = Path(data.data)
    found = given(root, file) if file else find_annotations(root, split)
    where = given(root, images) if images else None
    return Coco(found, where, training=training, keep_empty=data.keep_empty, drop=data.bad_boxes == "drop")


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
