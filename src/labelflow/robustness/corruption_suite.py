"""Accuracy, or mAP, under the corruptions of ImageNet-C: from its files, or of any images, corrupted on the fly."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from numpy import ndarray
from numpy.random import Generator

from labelflow.data.imagenet import imagenet_classes
from labelflow.robustness.corruption_error import ALEXNET, corruption_errors, mce, relative_mce
from labelflow.robustness.corruptions import (
    CORRUPTIONS,
    EXTRA,
    GROUPS,
    SMALLEST,
    check_installed,
    corrupt,
    read_texture,
    textures_in,
)
from labelflow.robustness.datasets import ImageSet, class_folders, hash_files, list_images
from labelflow.robustness.evaluator import Evaluator
from labelflow.robustness.natural import check_imagenet
from labelflow.robustness.results import Chart, Metric, Section, Strip
from labelflow.robustness.settings import CorruptionSettings
from labelflow.spec import known

SEVERITIES = 5
Scores = dict[str, list[list[float]]]  # corruption: [model][severity], in percent: top-1 accuracy or mAP


class Corruption:
    """One corruption; level s is severity s + 1."""

    levels = SEVERITIES

    def __init__(self, name: str, style: str, frost: str) -> None:
        self.name, self.style, self.frost = name, style, frost

    @property
    def key(self) -> str:
        textures = textures_in(self.frost) if self.name == "frost" and self.frost else []
        return " ".join(["corruption", self.name, self.style, *hash_files(textures)])

    def __call__(self, image: ndarray, level: int, random: Generator) -> ndarray:
        return corrupt(image, self.name, level + 1, random, style=self.style, frost=self.frost or None)


class CorruptionSuite:
    """Accuracy at each severity of each corruption."""

    def __init__(self, evaluator: Evaluator, dataset: ImageSet | None, settings: CorruptionSettings) -> None:
        self.evaluator, self.dataset, self.settings = evaluator, dataset, settings
        given = [name.strip() for text in settings.corruptions for name in text.split(",") if name.strip()]
        extra = tuple(EXTRA) if settings.extra_corruptions else ()
        every = {**CORRUPTIONS, **EXTRA}
        self.names = list(dict.fromkeys(known(name, every, "corruption") for name in (*(given or CORRUPTIONS), *extra)))
        self.counted = [name for name in self.names if name in CORRUPTIONS]  # in means
        self.perturbations = [Corruption(name, settings.style, settings.frost) for name in self.names]
        self.folders: dict[str, list[Path]] = {}  # of ImageNet-C: [severity]
        if settings.imagenet_c:
            for model in evaluator.models:
                check_imagenet(model)
            self.folders = {name: _severities(Path(settings.imagenet_c), name) for name in self.names}
            if dataset is not None and dataset.classes != imagenet_classes():
                self.dataset = None  # not the clean images of ImageNet-C
        elif dataset is None:
            raise ValueError("the corruptions suite needs images: --data FOLDER, or --imagenet-c FOLDER")
        else:
            check_installed()
            if settings.frost:
                for texture in textures_in(settings.frost):
                    read_texture(texture)  # raises if it is damaged
            for model in evaluator.models:
                if model.preprocessing.size < SMALLEST:
                    raise ValueError(
                        f"corruptions need at least {SMALLEST} pixels; {model.name} takes {model.preprocessing.size}"
                    )

    @property
    def passes(self) -> int:
        clean = self.evaluator.passes(self.dataset) if self.dataset else 0
        if self.folders:  # listing all of its millions of files would take minutes: the first severity stands for all
            first = self.evaluator.passes(self._open(self.names[0], 1))
            return clean + len(self.names) * SEVERITIES * first
        assert self.dataset is not None
        return clean + self.evaluator.passes(self.dataset, self.perturbations)

    def measure(self) -> Section:
        clean = [own.score[0] for own in self.evaluator.predict(self.dataset)[0]] if self.dataset else []
        scores = self._from_files() if self.folders else self._on_the_fly()
        metrics = self._means(scores, clean)
        details = [Metric(name, [_mean(severities) for severities in scores[name]]) for name in self.names]
        if self._is_imagenet and set(ALEXNET) <= set(self.names):
            means, errors = self._corruption_errors(scores, clean)
            metrics, details = metrics + means, details + errors
        return Section(
            "corruptions",
            "Corruptions",
            metrics,
            self._charts(scores, clean, self._groups()),
            details,
            self._notes(),
            self._strips(),
            more_charts=self._charts(scores, clean, {name: [name] for name in self.names}),
        )

    def _corruption_errors(self, scores: Scores, clean: list[float]) -> tuple[list[Metric], list[Metric]]:
        """mCE and relative mCE; and the CE of each corruption."""
        errors = [
            {name: [1 - value / 100 for value in scores[name][at]] for name in ALEXNET}
            for at in range(len(self.evaluator.models))
        ]
        metrics = [Metric("mCE", [mce(own) for own in errors], "", False)]
        if clean:
            relative = [relative_mce(own, 1 - value / 100) for own, value in zip(errors, clean, strict=True)]
            metrics.append(Metric("relative mCE", relative, "", False))
        by_name = [corruption_errors(own) for own in errors]
        return metrics, [Metric(f"CE of {name}", [own[name] for own in by_name], "", False) for name in ALEXNET]

    def _groups(self) -> dict[str, list[str]]:
        """Corruptions by kind, and all that count, unless these are of one kind."""
        groups = {title: [name for name in group if name in self.names] for title, group in GROUPS.items()}
        return groups if self.counted in groups.values() else {"all corruptions": self.counted, **groups}

    def _means(self, scores: Scores, clean: list[float]) -> list[Metric]:
        if not self.counted:  # extra ones only
            return [Metric(name, [_mean(severities) for severities in scores[name]]) for name in self.names]
        models = range(len(self.evaluator.models))
        means = [_mean([_mean(scores[name][at]) for name in self.counted]) for at in models]
        plural = "s" if len(self.counted) > 1 else ""
        metrics = [Metric(f"mean {self._metric} over {len(self.counted)} corruption{plural}", means)]
        if clean:
            relative = [100 * mean / value if value else 0.0 for mean, value in zip(means, clean, strict=True)]
            metrics.append(Metric(f"mean relative to clean {self._metric}", relative))
        return metrics

    def _charts(self, scores: Scores, clean: list[float], groups: Mapping[str, Sequence[str]]) -> list[Chart]:
        """Accuracy over severity, averaged over each group of corruptions; severity 0 is clean."""
        charts = []
        highest = max(value for models in scores.values() for severities in models for value in (*severities, *clean))
        for title, names in groups.items():
            lines = {
                model.name: [(0.0, value) for value in clean[at : at + 1]]
                + [(s + 1.0, _mean([scores[name][at][s] for name in names])) for s in range(SEVERITIES)]
                for at, model in enumerate(self.evaluator.models)
                if names
            }
            if lines:
                charts.append(Chart(f"{self._title}, %: {title}", "severity", lines, y_max=highest))
        return charts

    @property
    def _metric(self) -> str:
        return self.dataset.metric if self.dataset else "top-1"

    @property
    def _title(self) -> str:
        return self.dataset.title if self.dataset else "Top-1 accuracy"

    @property
    def _is_imagenet(self) -> bool:
        return bool(self.folders) or (self.dataset is not None and self.dataset.classes == imagenet_classes())

    def _on_the_fly(self) -> Scores:
        assert self.dataset is not None
        predictions = self.evaluator.predict(self.dataset, self.perturbations, "corruptions")
        return {name: [own.score for own in models] for name, models in zip(self.names, predictions, strict=True)}

    def _strips(self) -> list[Strip]:
        if self.folders or self.dataset is None:
            return []
        examples = zip(self.names, self.evaluator.example(self.dataset, self.perturbations), strict=False)
        return [Strip("An example, at severity 3", {name: levels[2] for name, levels in examples})]

    def _from_files(self) -> Scores:
        scores = {}
        for name in self.folders:
            datasets = (self._open(name, severity) for severity in range(1, SEVERITIES + 1))
            predictions = [self.evaluator.predict(dataset)[0] for dataset in datasets]  # [severity][model]
            scores[name] = [[own.score[0] for own in severities] for severities in zip(*predictions, strict=True)]
        return scores

    def _open(self, name: str, severity: int) -> ImageSet:
        """Opened only while they are evaluated: all lists of files together would be large."""
        folder, classes = self.folders[name][severity - 1], imagenet_classes()
        there = set(class_folders(folder))
        source = list_images(folder, classes, {own: label for label, own in enumerate(classes) if own in there})
        return self.evaluator.subsample(ImageSet(f"{name} {severity}", source, classes, cropped=True))

    def _notes(self) -> Sequence[str]:
        if self.folders:
            clean = f"; the clean images are those of {self.dataset.name}" if self.dataset else ""
            return [f"ImageNet-C, from {self.settings.imagenet_c}{clean}."]
        notes = [f"Corrupted on the fly, in the style of {self.settings.style}; all are means over 5 severities."]
        if self._is_imagenet:
            notes.append(
                "mCE is close to that of ImageNet-C's files, but not the same: those are JPEGs of images that were "
                "resized to 256 and cropped to 224 pixels."
            )
        sizes = {model.preprocessing.size for model in self.evaluator.models}
        if self.settings.style == "imagenet_c" and sizes != {224}:
            notes.append(
                "The style imagenet_c is meant for 224 pixels; distances in pixels are the same at other sizes."
            )
        if "frost" in self.names and not self.settings.frost:
            notes.append("Frost has textures drawn by code; --frost FOLDER uses the published ones.")
        return notes


def _severities(root: Path, name: str) -> list[Path]:
    """The folders of `root/NAME/SEVERITY/CLASS/…`, or one folder deeper, as the archives come."""
    if not root.is_dir():
        raise ValueError(f"--imagenet-c: there is no folder {root}")
    groups = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    candidates = [root / name, *(root / group / name for group in groups)]
    folder = next((candidate for candidate in candidates if candidate.is_dir()), None)
    if folder is None:
        raise ValueError(f"{root} has no folder {name}; choose corruptions that it has with --corruptions")
    for severity in range(1, SEVERITIES + 1):
        below = folder / str(severity)
        if not below.is_dir():
            raise ValueError(f"{folder} has no folder {severity}; ImageNet-C has five severities of each corruption")
        unknown = sorted(set(class_folders(below)) - set(imagenet_classes()))
        if unknown:
            raise ValueError(f"{below} has folders that are not classes of ImageNet, such as {unknown[0]}")
    return [folder / str(severity) for severity in range(1, SEVERITIES + 1)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
