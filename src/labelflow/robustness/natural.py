"""Natural distribution shifts: published test sets of ImageNet's classes, V2, A, R and Sketch, and the ReaL labels."""

import json
import os
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from labelflow.arguments import flag
from labelflow.classifier import Classifier
from labelflow.data.folder import SPLITS, Listed, first_folder, shorten
from labelflow.data.imagenet import imagenet_classes, wordnet_names
from labelflow.data.scan import image_files
from labelflow.robustness.cache import Predictions
from labelflow.robustness.datasets import ImageSet, class_folders, list_images
from labelflow.robustness.evaluator import Evaluator
from labelflow.robustness.results import Metric, Section
from labelflow.robustness.settings import NaturalSettings

VAL_NAME = re.compile(r"ILSVRC2012_val_(\d{8})")


def open_v2(folder: Path) -> list[ImageSet]:
    """Its folders are named 0 to 999, the indices of the classes."""
    variants = [name for name in class_folders(folder) if name.startswith("imagenetv2-")]
    if variants:
        return [dataset for name in variants for dataset in open_v2(folder / name)]
    classes, names = imagenet_classes(), _folders(folder)
    unknown = [name for name in names if not name.isdecimal() or int(name) >= len(classes)]
    if unknown:
        raise ValueError(f"ImageNet-V2 has folders 0 to 999, but {folder} has {shorten(unknown)}")
    source = list_images(folder, classes, {name: int(name) for name in names})
    variant = folder.name.removeprefix("imagenetv2-").removesuffix("-format-val")
    title = "ImageNet-V2" if variant == folder.name else f"ImageNet-V2 ({variant})"
    return [ImageSet(title, source, classes, _missing(names, classes))]


def open_a(folder: Path) -> list[ImageSet]:
    return [_of_wordnet("ImageNet-A", folder, "imagenet_a")]


def open_r(folder: Path) -> list[ImageSet]:
    return [_of_wordnet("ImageNet-R", folder, "imagenet_r")]


def open_sketch(folder: Path) -> list[ImageSet]:
    return [_of_wordnet("ImageNet-Sketch", folder, "imagenet")]


def open_real(folder: Path) -> list[ImageSet]:
    """An image's labels are looked up by the number in its file name; images without labels don't count."""
    real = real_labels()
    root = first_folder(folder, SPLITS["val"]) or folder
    paths = [os.path.join(root, file) for file in image_files(root)]
    numbers = [VAL_NAME.search(os.path.basename(path)) for path in paths]
    unknown = [path for path, number in zip(paths, numbers, strict=True) if not number]
    if unknown or not paths:
        other = unknown[0] if unknown else "no images"
        raise ValueError(f"ReaL labels need files named like ILSVRC2012_val_00000001.JPEG; {folder} has {other}")
    indices = [int(number[1]) - 1 for number in numbers if number]
    beyond = [path for path, index in zip(paths, indices, strict=True) if not 0 <= index < len(real)]
    if beyond:
        raise ValueError(f"ImageNet has {len(real)} validation images; not among them: {shorten(beyond)}")
    label_sets = [real[index] for index in indices]
    if not any(label_sets):
        raise ValueError(f"no image in {folder} has a ReaL label; 46,837 of ImageNet's 50,000 validation images do")
    classes = imagenet_classes()
    source = Listed(root, paths, [0] * len(paths), classes)  # the single label is not used
    return [ImageSet("ImageNet-ReaL", source, classes, label_sets=label_sets)]


NATURAL: dict[str, Callable[[Path], list[ImageSet]]] = {  # by the names in NaturalSettings
    "imagenet_v2": open_v2,
    "imagenet_a": open_a,
    "imagenet_r": open_r,
    "imagenet_sketch": open_sketch,
    "imagenet_real": open_real,
}


def real_labels() -> list[frozenset[int]]:
    """The correct labels of each validation image, from timm. Beyer et al. (2020), "Are we done with ImageNet?"."""
    text = (files("timm.data") / "_info" / "imagenet_real_labels.json").read_text(encoding="utf-8")
    return [frozenset(labels) for labels in json.loads(text)]


class NaturalSuite:
    """Top-1 accuracy on each data set."""

    def __init__(self, evaluator: Evaluator, settings: NaturalSettings) -> None:
        self.evaluator = evaluator
        self.datasets: list[ImageSet] = []
        folders = {name: getattr(settings, name) for name in NATURAL if getattr(settings, name)}
        if not folders:
            raise ValueError(f"the natural suite needs at least one of {', '.join(map(flag, NATURAL))}")
        for model in evaluator.models:
            check_imagenet(model)
        for name, folder in folders.items():
            if not Path(folder).is_dir():
                raise ValueError(f"{flag(name)}: there is no folder {folder}")
            try:
                self.datasets += map(evaluator.subsample, NATURAL[name](Path(folder)))
            except ValueError as error:
                raise ValueError(f"{flag(name)}: {error}") from None
        self.passes = sum(map(evaluator.passes, self.datasets))

    def measure(self) -> Section:
        metrics = []
        for dataset in self.datasets:
            (predictions,) = self.evaluator.predict(dataset)
            metrics.append(Metric(dataset.name, [_accuracy(own, dataset) for own in predictions]))
        notes = [f"{dataset.name}: {note}." for dataset in self.datasets for note in dataset.notes]
        for dataset in self.datasets:
            if dataset.label_sets:
                labelled = sum(map(bool, dataset.label_sets))
                notes.append(f"{dataset.name}: {labelled} of {len(dataset.label_sets)} images have labels and count.")
        return Section("natural", "Natural shifts", metrics, notes=notes)


def _accuracy(predictions: Predictions, dataset: ImageSet) -> float:
    """Percent; a prediction is correct if it is one of an image's labels."""
    if dataset.label_sets:
        return 100 * float(predictions.correct_among(dataset.label_sets)[0].mean())
    return predictions.top1[0]


def check_imagenet(model: Classifier) -> None:
    if model.multi_label:
        raise ValueError(f"{model.name} was trained on images with several labels; this data set has one class each")
    if wordnet_names(model.classes) != imagenet_classes():
        raise ValueError(
            f"{model.name} has {len(model.classes)} classes of its own; this data set needs ImageNet's 1000"
        )


def _of_wordnet(title: str, folder: Path, subset: str) -> ImageSet:
    """Class folders named by WordNet IDs. Predictions are restricted to the data set's classes."""
    classes = tuple((files("timm.data") / "_info" / f"{subset}_synsets.txt").read_text(encoding="utf-8").split())
    names = _folders(folder)
    there = set(names)
    unknown = sorted(there - set(classes))
    if unknown:
        raise ValueError(
            f"{folder} is not {title}: its {len(classes)} classes, like {classes[0]}, don't include {shorten(unknown)}"
        )
    source = list_images(folder, classes, {name: label for label, name in enumerate(classes) if name in there})
    return ImageSet(title, source, classes, _missing(names, classes))


def _folders(folder: Path) -> list[str]:
    names = class_folders(folder)
    if not names:
        raise ValueError(f"{folder} has no class folders")
    return names


def _missing(folders: list[str], classes: tuple[str, ...]) -> tuple[str, ...]:
    return () if len(folders) == len(classes) else (f"{len(folders)} of {len(classes)} classes",)
