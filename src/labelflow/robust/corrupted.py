"""Accuracy under the corruptions of ImageNet-C: from disk, or made on the fly of any images.

Shapes: S×S pixels.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from numpy import ndarray
from numpy.random import Generator

from labelflow.classifier import imagenet_classes
from labelflow.robust.answers import Answers
from labelflow.robust.corruption_error import ALEXNET, corruption_errors, mce, relative_mce
from labelflow.robust.corruptions import CORRUPTIONS, EXTRA, GROUPS, check_installed, corrupt, read_texture, textures_in
from labelflow.robust.natural import check_imagenet
from labelflow.robust.results import Chart, Finding, Section, Strip
from labelflow.robust.session import Session
from labelflow.robust.sets import Set, files_digest, folders_in, of_classes
from labelflow.robust.settings import Corrupting
from labelflow.spec import known

SEVERITIES = 5
Found = dict[str, list[list[float]]]  # corruption: [model][severity], top-1 accuracy


class Corruption:
    """One corruption; level s is severity s + 1."""

    levels = SEVERITIES

    def __init__(self, name: str, style: str, frost: str) -> None:
        self.name, self.style, self.frost = name, style, frost

    @property
    def key(self) -> str:
        textures = textures_in(self.frost) if self.name == "frost" and self.frost else []
        return " ".join(["corruption", self.name, self.style, *files_digest(textures)])

    def __call__(self, picture: ndarray, level: int, random: Generator) -> ndarray:
        return corrupt(picture, self.name, level + 1, random, style=self.style, frost=self.frost or None)


class Corrupted:
    """Accuracy at each severity of each corruption."""

    def __init__(self, session: Session, own: Set | None, settings: Corrupting) -> None:
        self.session, self.own, self.settings = session, own, settings
        every = {**CORRUPTIONS, **EXTRA}
        asked = [name.strip() for text in settings.corruptions for name in text.split(",") if name.strip()]
        names = asked or tuple(CORRUPTIONS)
        extra = tuple(EXTRA) if settings.extra_corruptions else ()
        self.names = list(dict.fromkeys(known(name, every, "corruption") for name in (*names, *extra)))
        self.changes = [Corruption(name, settings.style, settings.frost) for name in self.names]
        self.on_disk: dict[str, list[Path]] = {}  # the folder of each severity
        if settings.imagenet_c:
            for model in session.models:
                check_imagenet(model)
            self.on_disk = {name: _severities(Path(settings.imagenet_c), name) for name in self.names}
            if own is not None and own.classes != imagenet_classes():
                self.own = None  # not the clean images of these
        elif own is None:
            raise ValueError("the corruptions need images: --data FOLDER, or --imagenet-c FOLDER")
        else:
            check_installed()
            if settings.frost:
                for texture in textures_in(settings.frost):
                    read_texture(texture)  # tells if it is damaged
            for model in session.models:
                if model.preprocessing.size < 32:
                    raise ValueError(
                        f"{model.name} sees {model.preprocessing.size} pixels in a row; corruptions need 32"
                    )

    @property
    def passes(self) -> int:
        clean = self.session.passes(self.own) if self.own else 0
        if self.on_disk:  # of millions of files, some are counted
            first = self.session.passes(self._open(self.names[0], 1))
            return clean + len(self.names) * SEVERITIES * first
        assert self.own is not None
        return clean + self.session.passes(self.own, self.changes)

    def measure(self) -> Section:
        clean = [found.top1[0] for found in self.session.ask(self.own)[0]] if self.own else []
        found = self._from_disk() if self.on_disk else self._on_the_fly()
        details = [Finding(name, [_mean(values) for values in found[name]]) for name in self.names]
        findings = self._means(found, clean)
        if self._is_imagenet and set(ALEXNET) <= set(self.names):
            beside, each = self._beside_alexnet(found, clean)
            findings, details = findings + beside, details + each
        return Section(
            "corruptions",
            "Corruptions",
            findings,
            self._charts(found, clean, self._groups()),
            details,
            self._notes(),
            self._strips(),
            more_charts=self._charts(found, clean, {name: [name] for name in self.names}),
        )

    def _beside_alexnet(self, found: Found, clean: list[float]) -> tuple[list[Finding], list[Finding]]:
        """mCE and relative mCE; and the error of each corruption."""
        errors = [
            {name: [1 - top1 / 100 for top1 in found[name][at]] for name in ALEXNET}
            for at in range(len(self.session.models))
        ]
        findings = [Finding("mCE", [mce(one) for one in errors], "", False)]
        if clean:
            relative = [relative_mce(one, 1 - own / 100) for one, own in zip(errors, clean, strict=True)]
            findings.append(Finding("relative mCE", relative, "", False))
        each = [corruption_errors(one) for one in errors]
        return findings, [Finding(f"CE of {name}", [one[name] for one in each], "", False) for name in ALEXNET]

    def _groups(self) -> dict[str, list[str]]:
        """Corruptions of a kind, and all that count, if these are more than a kind."""
        groups = {title: [name for name in group if name in self.names] for title, group in GROUPS.items()}
        counted = [name for name in self.names if name in CORRUPTIONS]
        return groups if counted in groups.values() else {"all corruptions": counted, **groups}

    def _means(self, found: Found, clean: list[float]) -> list[Finding]:
        counted = [name for name in self.names if name in CORRUPTIONS]
        if not counted:  # extra ones alone
            return [Finding(name, [_mean(values) for values in found[name]]) for name in self.names]
        models = range(len(self.session.models))
        means = [_mean([_mean(found[name][at]) for name in counted]) for at in models]
        findings = [Finding(f"mean over {len(counted)} corruption{'s' * (len(counted) > 1)}", means)]
        if clean:
            kept = [100 * mean / own if own else 0.0 for mean, own in zip(means, clean, strict=True)]
            findings.append(Finding("part of the clean accuracy", kept))
        return findings

    def _charts(self, found: Found, clean: list[float], groups: Mapping[str, Sequence[str]]) -> list[Chart]:
        """Accuracy over severity, a mean over each group of corruptions; severity 0 is clean."""
        charts = []
        highest = max(top1 for own in found.values() for severities in own for top1 in (*severities, *clean))
        for title, inside in groups.items():
            lines = {
                model.name: [(0.0, own) for own in clean[at : at + 1]]
                + [(s + 1.0, _mean([found[name][at][s] for name in inside])) for s in range(SEVERITIES)]
                for at, model in enumerate(self.session.models)
                if inside
            }
            if lines:
                charts.append(Chart(f"Top-1 accuracy, %: {title}", "severity", lines, reach=highest))
        return charts

    @property
    def _is_imagenet(self) -> bool:
        return bool(self.on_disk) or (self.own is not None and self.own.classes == imagenet_classes())

    def _on_the_fly(self) -> Found:
        assert self.own is not None
        answers = self.session.ask(self.own, self.changes, "corruptions")
        return {name: [one.top1 for one in found] for name, found in zip(self.names, answers, strict=True)}

    def _strips(self) -> list[Strip]:
        if self.on_disk or self.own is None:
            return []
        seen = zip(self.names, self.session.example(self.own, self.changes), strict=False)
        return [Strip("An image, at severity 3", {name: levels[2] for name, levels in seen})]

    def _from_disk(self) -> Found:
        found = {}
        for name in self.on_disk:
            opened = (self._open(name, severity) for severity in range(1, SEVERITIES + 1))
            answers: list[list[Answers]] = [self.session.ask(one)[0] for one in opened]  # [severity][model]
            found[name] = [[one.top1[0] for one in own] for own in zip(*answers, strict=True)]
        return found

    def _open(self, name: str, severity: int) -> Set:
        """The images of ImageNet-C, which are a list only as long as they are asked about."""
        folder, classes = self.on_disk[name][severity - 1], imagenet_classes()
        there = set(folders_in(folder))
        source = of_classes(folder, classes, {own: place for place, own in enumerate(classes) if own in there})
        return self.session.pick(Set(f"{name} {severity}", source, classes, cropped=True))

    def _notes(self) -> Sequence[str]:
        if self.on_disk:
            clean = f"; the clean images are those of {self.own.name}" if self.own else ""
            return [f"ImageNet-C, from {self.settings.imagenet_c}{clean}."]
        notes = [f"Made on the fly, in the style of {self.settings.style}; each number is a mean over 5 severities."]
        if self._is_imagenet:
            notes.append(
                "mCE is near to that of ImageNet-C's files, not the same: those were drawn once, as JPEGs, of images "
                "resized to 256 and cropped to 224 pixels."
            )
        if self.settings.style == "imagenet_c" and any(
            model.preprocessing.size != 224 for model in self.session.models
        ):
            notes.append("The style imagenet_c is made for 224 pixels; at other sizes the same changes are in pixels.")
        if "frost" in self.names and not self.settings.frost:
            notes.append("Frost has textures made by code, not the published ones: --frost FOLDER uses those.")
        return notes


def _severities(root: Path, name: str) -> list[Path]:
    """The folders of `root/NAME/SEVERITY/CLASS/…`, or one folder deeper, as the archives come."""
    if not root.is_dir():
        raise ValueError(f"there is no folder {root}, which --imagenet-c names")
    groups = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    candidates = [root / name, *(root / group / name for group in groups)]
    folder = next((candidate for candidate in candidates if candidate.is_dir()), None)
    if folder is None:
        raise ValueError(f"{root} has no folder {name}; --corruptions chooses those that are there")
    for severity in range(1, SEVERITIES + 1):
        below = folder / str(severity)
        if not below.is_dir():
            raise ValueError(f"{folder} has no folder {severity}: ImageNet-C has five severities of each corruption")
        strange = sorted(set(folders_in(below)) - set(imagenet_classes()))
        if strange:
            raise ValueError(f"{below} has folders that are no classes of ImageNet's, such as {strange[0]}")
    return [folder / str(severity) for severity in range(1, SEVERITIES + 1)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
