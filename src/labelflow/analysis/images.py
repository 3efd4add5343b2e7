"""Images for a classifier to look at: its evaluation images, or files.

Shapes: H×W pixels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from labelflow.chance import generator
from labelflow.classifier import Classifier
from labelflow.data import Data, Stream, open_source
from labelflow.data.batches import Draw
from labelflow.data.imagenet import title, wordnet_names
from labelflow.data.images import read_or_refuse
from labelflow.data.transforms import as_view
from labelflow.data.views import Views
from labelflow.data.world import World
from labelflow.engine.run import Run
from labelflow.tasks.recipe import read_recipe

WORLD = "world(train=64, val=1000)"  # what a model sees that has no data of its own
CANDIDATES = 8  # how many more samples are looked at to find pairs of different classes


@dataclass(frozen=True, eq=False)
class LabelledImage:
    """An image as a model sees it, and what is known of it."""

    image: Tensor  # (3, H, W), normalised
    label: int  # the column of the model's logits that means its class; -1: unknown, or not one class
    name: str  # what to call it: its class, its classes or its file
    masks: Mapping[str, Tensor] = field(default_factory=dict)  # (H, W) bool: where objects of a class are to be seen,
    # which the sample world knows


def evaluation_data(classifier: Classifier, data: str = "") -> Data:
    """What a run is evaluated on, or the sample world; `data` names other images."""
    own = read_recipe(Run(classifier.folder)).data if classifier.folder else Data(source=WORLD, workers=0)
    return replace(own, source=data or own.source)


def images_of(
    classifier: Classifier, count: int, files: Sequence[Path] = (), data: Data | None = None
) -> list[LabelledImage]:
    """The given files, or so many of the evaluation images, in an order that is the same each time."""
    transform = classifier.preprocessing.transform()
    if files:
        return [LabelledImage(transform(read_or_refuse(path)), -1, path.stem) for path in files]
    side = classifier.preprocessing.size
    crop = min(1.0, classifier.preprocessing.crop_pct)
    source = open_source(replace(data or evaluation_data(classifier), image_size=side, test_crop=crop), "val")
    columns = {name: column for column, name in enumerate(wordnet_names(classifier.classes))}
    labels = [columns.get(name, -1) for name in wordnet_names(source.classes)]
    names = [title(name) for name in source.classes]
    if isinstance(source, Stream):
        taken = [(transform(image), label) for image, label in islice(source.open(0), count)]
        return [LabelledImage(image, *_called(label, labels, names)) for image, label in taken]
    chosen = torch.randperm(len(source), generator=generator(0))[:count].tolist()
    views = Views(source, as_view(transform), seed=0, training=False)
    found = []
    for index in chosen:
        view = views[Draw(index, 0, index)]
        if not view.problem:
            masks = _masks(source, index, side) if isinstance(source, World) else {}
            found.append(LabelledImage(view.image, *_called(view.label, labels, names), masks))
    return found


def _called(label: Any, labels: list[int], names: list[str]) -> tuple[int, str]:
    """The column and the name of a label, a number; or of several, a multi-hot array."""
    if isinstance(label, int):
        return labels[label], names[label]
    return -1, ", ".join(names[one] for one in label.nonzero()[0]) or "no label"


def pairs_of(
    classifier: Classifier, count: int, files: Sequence[Path] = (), data: Data | None = None
) -> list[tuple[LabelledImage, LabelledImage]]:
    """So many pairs of images, of different classes as far as possible; of files, one after the other."""
    if len(files) == 1:
        raise ValueError(f"a pair needs two images, not {files[0]} alone")
    if len(files) % 2:
        raise ValueError(f"images come in pairs, one after the other; {len(files)} were given")
    images = images_of(classifier, 2 * count + CANDIDATES, files, data)
    if files:
        return list(zip(images[::2], images[1::2], strict=True))[:count]
    if len(images) < 2:
        raise ValueError("the evaluation data has fewer than two images that can be read")
    pairs: list[tuple[LabelledImage, LabelledImage]] = []
    while len(images) > 1 and len(pairs) < count:
        own = images.pop(0)
        other = next((at for at, one in enumerate(images) if one.name != own.name), 0)
        pairs.append((own, images.pop(other)))
    return pairs


def _masks(world: World, index: int, side: int) -> dict[str, Tensor]:
    """Where the objects of each class are, in the centre of a scene that is evaluated."""
    scene = world[index]
    top = (len(scene.mask) - side) // 2
    mask = torch.from_numpy(scene.mask)[top : top + side, top : top + side]
    places: dict[str, Tensor] = {}
    for number, kind in enumerate(scene.objects.tolist(), start=1):
        name = world.classes[kind]
        places[name] = places.get(name, torch.zeros_like(mask, dtype=torch.bool)) | (mask == number)
    return places
