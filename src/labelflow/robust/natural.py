"""Published sets of other photographs of ImageNet's classes: V2, A, R, Sketch, and the ReaL labels."""

import json
import os
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from labelflow.classifier import Classifier, imagenet_classes, wordnet_names
from labelflow.data.folder import SPLITS, Listed, first_folder, image_files, shorten
from labelflow.robust.results import Finding, Section
from labelflow.robust.session import Session
from labelflow.robust.sets import Set, folders_in, of_classes
from labelflow.robust.settings import NaturalSets

VAL_NAME = re.compile(r"ILSVRC2012_val_(\d{8})")


def open_v2(folder: Path) -> list[Set]:
    """Its folders are numbers of classes, which sort as numbers."""
    variants = [name for name in folders_in(folder) if name.startswith("imagenetv2-")]
    if variants:
        return [found for name in variants for found in open_v2(folder / name)]
    classes, names = imagenet_classes(), _folders(folder)
    strange = [name for name in names if not name.isdecimal() or int(name) >= len(classes)]
    if strange:
        raise ValueError(f"the folders of ImageNet-V2 are called 0 to 999, but {folder} has {shorten(strange)}")
    source = of_classes(folder, classes, {name: int(name) for name in names})
    variant = folder.name.removeprefix("imagenetv2-").removesuffix("-format-val")
    return [Set(f"ImageNet-V2{f' ({variant})' * (variant != folder.name)}", source, classes, _missing(names, classes))]


def open_a(folder: Path) -> list[Set]:
    return [_of_wordnet("ImageNet-A", folder, "imagenet_a")]


def open_r(folder: Path) -> list[Set]:
    return [_of_wordnet("ImageNet-R", folder, "imagenet_r")]


def open_sketch(folder: Path) -> list[Set]:
    return [_of_wordnet("ImageNet-Sketch", folder, "imagenet")]


def open_real(folder: Path) -> list[Set]:
    """The right answers of an image are found by the number in its file's name; some have none and don't count."""
    truths = real_labels()
    root = first_folder(folder, SPLITS["val"]) or folder
    paths = [os.path.join(root, file) for file in image_files(root)]
    numbers = [VAL_NAME.search(os.path.basename(path)) for path in paths]
    strange = [path for path, number in zip(paths, numbers, strict=True) if not number]
    if strange or not paths:
        told = f"such as {strange[0]}" if strange else "or rather none at all"
        raise ValueError(f"ReaL labels belong to files like ILSVRC2012_val_00000001.JPEG; {folder} has others, {told}")
    places = [int(number[1]) - 1 for number in numbers if number]
    beyond = [path for path, place in zip(paths, places, strict=True) if not 0 <= place < len(truths)]
    if beyond:
        raise ValueError(f"ImageNet has {len(truths)} validation images; {shorten(beyond)} is not one of them")
    own = [truths[place] for place in places]
    if not any(own):
        raise ValueError(f"no image of {folder} has a ReaL label; of all 50,000, 46,837 have")
    classes = imagenet_classes()
    source = Listed(root, [(path, 0) for path in paths], classes)  # their one label is not asked for
    return [Set("ImageNet-ReaL", source, classes, truths=own)]


NATURAL: dict[str, Callable[[Path], list[Set]]] = {  # by their names in NaturalSets
    "imagenet_v2": open_v2,
    "imagenet_a": open_a,
    "imagenet_r": open_r,
    "imagenet_sketch": open_sketch,
    "imagenet_real": open_real,
}


def real_labels() -> list[frozenset[int]]:
    """The right answers of each validation image, from timm. Beyer et al. (2020), "Are we done with ImageNet?"."""
    text = (files("timm.data") / "_info" / "imagenet_real_labels.json").read_text()
    return [frozenset(labels) for labels in json.loads(text)]


class Natural:
    """Top-1 accuracy on each set."""

    def __init__(self, session: Session, settings: NaturalSets) -> None:
        self.session = session
        self.sets: list[Set] = []
        given = {name: getattr(settings, name) for name in NATURAL if getattr(settings, name)}
        if not given:
            raise ValueError(f"the natural suite needs a folder at least of: {', '.join(map(flag, NATURAL))}")
        for model in session.models:
            check_imagenet(model)
        for name, folder in given.items():
            if not Path(folder).is_dir():
                raise ValueError(f"there is no folder {folder}, which {flag(name)} names")
            try:
                self.sets += map(session.pick, NATURAL[name](Path(folder)))
            except ValueError as error:
                raise ValueError(f"{flag(name)}: {error}") from None
        self.passes = sum(map(session.passes, self.sets))

    def measure(self) -> Section:
        findings = []
        for found in self.sets:
            (answers,) = self.session.ask(found)
            values = [
                100 * float(one.among(found.truths)[0].mean()) if found.truths else one.top1[0] for one in answers
            ]
            findings.append(Finding(found.name, values))
        notes = [f"{found.name}: {note}." for found in self.sets for note in found.notes]
        for found in self.sets:
            if found.truths:
                answered = sum(map(bool, found.truths))
                notes.append(f"{found.name}: {answered} of {len(found.truths)} images have an answer, and count.")
        return Section("natural", "Natural shifts", findings, notes=notes)


def flag(name: str) -> str:
    """Of a setting.

    >>> flag("imagenet_a")
    '--imagenet-a'
    """
    return f"--{name.replace('_', '-')}"


def check_imagenet(model: Classifier) -> None:
    if wordnet_names(model.classes) != imagenet_classes():
        raise ValueError(
            f"{model.name} has {len(model.classes)} classes of its own; ImageNet's sets need a model of ImageNet's 1000"
        )


def _of_wordnet(title: str, folder: Path, subset: str) -> Set:
    """Class folders called by WordNet's numbers. Answers are restricted to the set's classes."""
    classes = tuple((files("timm.data") / "_info" / f"{subset}_synsets.txt").read_text().split())
    names = _folders(folder)
    there = set(names)
    strange = sorted(there - set(classes))
    if strange:
        raise ValueError(
            f"{folder} is not {title}, which has {len(classes)} classes called like {classes[0]}: "
            f"{shorten(strange)} {'are' if len(strange) > 1 else 'is'} none"
        )
    source = of_classes(folder, classes, {name: label for label, name in enumerate(classes) if name in there})
    return Set(title, source, classes, _missing(names, classes))


def _folders(folder: Path) -> list[str]:
    names = folders_in(folder)
    if not names:
        raise ValueError(f"{folder} has no class folders")
    return names


def _missing(found: list[str], classes: tuple[str, ...]) -> tuple[str, ...]:
    return () if len(found) == len(classes) else (f"{len(found)} of {len(classes)} classes are there",)
