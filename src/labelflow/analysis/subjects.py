"""What is looked at: the model of a run, or one of timm's, and images for it to see.

Shapes: H×W pixels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from timm.data import ImageNetInfo
from torch import Tensor, nn

from labelflow.chance import generator
from labelflow.data import Data, Stream, eval_transform, open_source
from labelflow.data.images import read_or_refuse
from labelflow.data.transforms import as_view
from labelflow.data.views import Draw, Views
from labelflow.data.world import World
from labelflow.engine.run import Run
from labelflow.models.create import create
from labelflow.spec import parse
from labelflow.tasks.classify import Recipe, check_classes
from labelflow.tasks.runs import Loaded, load_run

WORLD = "world(train=64, val=1000)"  # what a model sees that has no data of its own
RANDOM = " (random weights)"
CANDIDATES = 8  # how many more samples are looked at to find pairs of different classes


@dataclass(frozen=True, eq=False)
class Subject:
    """A model, and how it wants to see images."""

    name: str
    model: nn.Module  # in eval mode
    data: Data  # its size, mean and std; of a run, its evaluation images, too
    classes: list[str]  # empty: nobody knows their names
    recipe: Recipe | None = None  # of a run
    folder: Path | None = None  # of a run
    trained: bool = True  # False: its weights are random

    @property
    def label(self) -> str:
        """What a figure calls it."""
        return self.name if self.trained else f"{self.name}{RANDOM}"

    def class_name(self, place: int) -> str:
        """What people call a class: without names, a thousand are taken for ImageNet's."""
        if self.classes:
            return title(self.classes[place])
        if getattr(self.model, "num_classes", 0) == 1000:
            return title(ImageNetInfo().index_to_label_name(place))
        return f"class {place}"

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def card(self) -> dict[str, Any]:
        """A run's model.json: what timm needs to build the model."""
        assert self.folder is not None
        return Run(self.folder).read("model.json")

    def epoch_of(self, update: int) -> float:
        """Of a run's update."""
        assert self.recipe is not None
        return update / max(1, self.card["samples"] // self.recipe.training.batch)


def load_subject(name: str, init: str = "", weights: str = "best", data: str = "") -> Subject:
    """The folder of a run, or a timm model: "deit_small_patch16_224", "vit_tiny_patch16_224(img_size=64, depth=4)".

    init: the weights of a timm model, '' for random ones, or pretrained, packaged, a file. weights: those of a run.
    data: other evaluation images than the run's own, or than the sample world's.

    >>> load_subject("vit_tiny_patch16_224(img_size=64, depth=1)").data.image_size
    64
    """
    if (Path(name) / "recipe.json").exists():
        subject = of_run(load_run(name, weights), Path(name))
        return replace(subject, data=replace(subject.data, source=data)) if data else subject
    if Path(name).exists() or "/" in name.partition("(")[0]:
        missing = "it has no recipe.json" if Path(name).exists() else "there is no such folder"
        raise ValueError(f"{name} is not a run: {missing}. Give a run's folder, or a model of timm's")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # random weights are the same each time
        model = create(name, init).eval()
    seen: Any = model.pretrained_cfg
    size = parse(name)[1].get("img_size") or seen["input_size"][1:]
    height, width = (size, size) if isinstance(size, int) else size
    if height != width or getattr(model, "in_chans", 3) != 3:
        raise ValueError(f"{name} does not take square colour images, which figures show; they can't show it")
    mean, std = tuple(seen["mean"]), tuple(seen["std"])
    settings = Data(source=data or WORLD, image_size=height, mean=mean, std=std, test_crop=1.0, workers=0)
    return Subject(name, model, settings, [], trained=bool(init))


def of_run(loaded: Loaded[Recipe], folder: Path) -> Subject:
    name = folder.resolve().name
    return Subject(name, loaded.model, loaded.recipe.data, loaded.classes, loaded.recipe, folder)


def title(name: str) -> str:
    """What people call a class: ImageNet's have WordNet's numbers.

    >>> title("n01440764"), title("my cats")
    ('tench', 'my cats')
    """
    info = ImageNetInfo()
    known = name[1:].isdigit() and name in set(info.label_names())
    return info.label_name_to_description(name).split(",")[0] if known else name


@dataclass(frozen=True, eq=False)
class Seen:
    """An image as a model sees it."""

    image: Tensor  # (3, H, W), normalised
    label: int  # its class; -1: nobody knows
    name: str  # what to call it: its class or its file
    masks: Mapping[int, Tensor] = field(default_factory=dict)  # (H, W) bool: where objects of a class are to be seen,
    # which the sample world knows


def images_of(subject: Subject, count: int, files: Sequence[Path] = ()) -> list[Seen]:
    """The given files, or so many of the evaluation images, in an order that is the same each time."""
    if files:
        return [_of_file(path, subject.data) for path in files]
    data = subject.data
    source, transform = open_source(data, "val"), eval_transform(data)
    if subject.classes:
        check_classes(subject.classes, list(source.classes), f"the data {data.source}")
    if isinstance(source, Stream):
        taken = [(transform(image), label) for image, label in islice(source.open(0), count)]
        return [Seen(image, label, title(source.classes[label])) for image, label in taken]
    chosen = torch.randperm(len(source), generator=generator(0))[:count].tolist()
    views = Views(source, as_view(transform), seed=0, training=False)
    found = []
    for index in chosen:
        view = views[Draw(index, 0, index)]
        if not view.problem:
            masks = _masks(source, index, data.image_size) if isinstance(source, World) else {}
            found.append(Seen(view.image, view.label, title(source.classes[view.label]), masks))
    return found


def pairs_of(subject: Subject, count: int, files: Sequence[Path] = ()) -> list[tuple[Seen, Seen]]:
    """So many pairs of images, of different classes as far as possible; of files, one after the other."""
    if len(files) == 1:
        raise ValueError(f"a pair needs two images, not {files[0]} alone")
    if len(files) % 2:
        raise ValueError(f"images come in pairs, one after the other; {len(files)} were given")
    seen = images_of(subject, 2 * count + CANDIDATES, files)
    if len(seen) < 2:
        raise ValueError(f"the evaluation data {subject.data.source} has no two images that can be read")
    pairs: list[tuple[Seen, Seen]] = []
    while len(seen) > 1 and len(pairs) < count:
        own = seen.pop(0)
        other = next((at for at, one in enumerate(seen) if one.label != own.label or one.label < 0), 0)
        pairs.append((own, seen.pop(other)))
    return pairs


def _of_file(path: Path, data: Data) -> Seen:
    return Seen(eval_transform(replace(data, test_crop=1.0))(read_or_refuse(path)), -1, path.stem)


def _masks(world: World, index: int, side: int) -> dict[int, Tensor]:
    """Where the objects of each class are, in the centre of a scene that is evaluated."""
    scene = world[index]
    top = (len(scene.mask) - side) // 2
    mask = torch.from_numpy(scene.mask)[top : top + side, top : top + side]
    places: dict[int, Tensor] = {}
    for number, kind in enumerate(scene.objects.tolist(), start=1):
        places[kind] = places.get(kind, torch.zeros_like(mask, dtype=torch.bool)) | (mask == number)
    return places
