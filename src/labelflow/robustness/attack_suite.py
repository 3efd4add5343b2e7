"""Accuracy under attack: how many images are still classified correctly when each is perturbed against the model.

Shapes: R radii, n images.
"""

from functools import cached_property
from itertools import count
from pathlib import Path

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor, nn

from labelflow.classifier import Classifier
from labelflow.data import Unreadable
from labelflow.engine.progress import Counted
from labelflow.robustness.attacks import ATTACKS, Attack, Ball, Batch, auto_attack, run_attacks
from labelflow.robustness.attacks.ensemble import SURVIVES, WRONG_BEFORE, most_passes
from labelflow.robustness.cache import read_outcomes, write_outcomes
from labelflow.robustness.datasets import ImageSet, digest, image_seed, subsample, subset
from labelflow.robustness.evaluator import FORMAT, Evaluator, unreadable_message
from labelflow.robustness.images import CLEAN, ImageBatch, PerturbedImages, load_images
from labelflow.robustness.results import Chart, Metric, Section, uncertainty
from labelflow.robustness.settings import AUTO, AttackSettings
from labelflow.spec import build, known, parse

UNREADABLE = -3  # an outcome, beside those of `run_attacks`
Named = list[tuple[str, Attack]]
Outcomes = list[dict[int, int]]  # [radius], by an image's key


class Restricted(nn.Module):
    """A model for images from 0 to 1, in eval mode, whose logits are restricted to some classes."""

    def __init__(self, model: nn.Module, columns: Tensor | None) -> None:
        super().__init__()
        self.model, self.columns = model, columns

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images).float()
        return logits if self.columns is None else logits[:, self.columns]


class AttackSuite:
    """Accuracy over the radius of each attack. An image that falls at one radius falls at all larger ones, too."""

    def __init__(self, evaluator: Evaluator, dataset: ImageSet, settings: AttackSettings) -> None:
        self.evaluator, self.settings, self.balls = evaluator, settings, settings.balls
        self.dataset = subsample(dataset, settings.attack_samples, evaluator.seed)
        if len(dataset.classes) < 2:
            raise ValueError(f"attacks need at least two classes; {dataset.name} has {len(dataset.classes)}")
        self.notes: list[str] = []
        self.attacks = {text: self._attack(text, len(dataset.classes)) for text in settings.attacks}

    def _attack(self, text: str, classes: int) -> Named:
        if text != AUTO:
            name = known(parse(text).name, {AUTO: None, **ATTACKS}, "attack")
            if name == AUTO:
                parts = ", ".join(part for part, _ in auto_attack(classes).attacks)
                raise ValueError(f"{AUTO} takes no settings; its parts do: {parts}")
            attack: Attack = build(text, ATTACKS, "attack")
            attack.passes(classes)  # raises if there are too few classes for it
            return [(text, attack)]
        plan = auto_attack(classes)
        self.notes += [f"{AUTO}: {note}." for note in plan.notes]
        return plan.attacks

    @property
    def passes(self) -> int:
        return len(self.dataset.source) * len(self.evaluator.models) * sum(map(self._cost, self.attacks))

    def measure(self) -> Section:
        fallen: dict[str, list[ndarray]] = {}  # attack: [model], (R, n)
        with Counted("attacks", "forward passes", self.passes, quiet=self.evaluator.quiet) as progress:
            for text, attacks in self.attacks.items():
                fallen[text] = [self._run(model, text, attacks, progress) for model in self.evaluator.models]
        first = next(iter(fallen.values()))
        metrics = [Metric("clean accuracy on these images", list(map(_clean_accuracy, first)))]
        metrics += [
            Metric(f"{text}, {name}", [_robust_accuracy(own[at]) for own in fallen[text]])
            for text in self.attacks
            for at, name in enumerate(self.balls)
        ]
        images = first[0].shape[1]
        notes = [f"{images} images, each perturbed against the model; {uncertainty(images)}.", *self.notes]
        charts = [self._chart(text, fallen[text]) for text in self.attacks]
        return Section("attack", "Attacks", metrics, charts, notes=notes)

    def _chart(self, text: str, fallen: list[ndarray]) -> Chart:
        scale, x_label = (255, "radius, in 255ths") if self.settings.norm == "linf" else (1, "radius")
        radii = [ball.radius * scale for ball in self.balls.values()]
        lines = {
            model.name: [(0.0, _clean_accuracy(own)), *zip(radii, map(_robust_accuracy, own), strict=True)]
            for model, own in zip(self.evaluator.models, fallen, strict=True)
        }
        return Chart(f"Top-1 accuracy, %, under {text}", x_label, lines, y_max=max(map(_clean_accuracy, fallen)))

    def _run(self, model: Classifier, text: str, attacks: Named, progress: Counted) -> ndarray:
        """(R, n): what each readable image falls to at each radius; cached batch by batch."""
        paths = [self._path(model, text, ball) for ball in self.balls.values()]
        outcomes = [read_outcomes(path) for path in paths]
        todo = [index for index, key in enumerate(self.keys) if not _is_known(key, outcomes)]
        done = len(self.keys) - len(todo)
        progress.forgo(done * self._cost(text))
        self.evaluator.cached += done
        if todo:
            victim = Restricted(model.model, self.evaluator.columns(model, self.dataset)).eval()
            unreadable = Unreadable(self.evaluator.skip_unreadable, progress.say)
            images = PerturbedImages(subset(self.dataset, todo), model.preprocessing, (CLEAN,), self.evaluator.seed)
            loader = load_images(images, self.settings.attack_batch, self.evaluator.workers)
            for first, batch in zip(count(0, self.settings.attack_batch), loader, strict=False):
                unreadable(batch.errors)
                rows = todo[first : first + len(batch.labels)]
                keys = [self.keys[index] for index in rows]
                outcomes[0] |= {key: UNREADABLE for key, read in zip(keys, batch.readable, strict=True) if not read}
                self._attack_batch(victim, attacks, self._clean_batch(batch, rows), keys, outcomes, progress)
                for path, own in zip(paths, outcomes, strict=True):
                    write_outcomes(path, own)
        return self._fallen(outcomes)

    def _clean_batch(self, batch: ImageBatch, rows: list[int]) -> Batch:
        seeds = [image_seed(self.dataset.source, index) for index in rows]
        device = self.evaluator.device
        return Batch(batch.images.to(device) / 255, batch.labels.to(device), seeds, self.evaluator.seed)

    def _attack_batch(
        self, victim: nn.Module, attacks: Named, clean: Batch, keys: list[int], outcomes: Outcomes, progress: Counted
    ) -> None:
        """Adds the outcomes for a batch."""
        most = most_passes(attacks, len(self.dataset.classes))  # of an image, within one radius
        alive = [row for row, key in enumerate(keys) if outcomes[0].get(key) != UNREADABLE]
        for ball, own in zip(self.balls.values(), outcomes, strict=True):
            before = progress.worked
            new = [row for row in alive if keys[row] not in own]
            progress.spare(most * (len(keys) - len(new)))  # those that fell in smaller balls
            progress.begin(most * len(new))
            if new:
                part = clean.at(torch.tensor(new, device=clean.labels.device))
                fallen = run_attacks(victim, attacks, part, ball, progress.advance, progress.spare).fallen.tolist()
                own |= {keys[row]: outcome for row, outcome in zip(new, fallen, strict=True)}
            alive = [row for row in alive if own[keys[row]] == SURVIVES]  # the others fall in larger balls, too
            self.evaluator.attack_passes += progress.worked - before

    def _fallen(self, outcomes: Outcomes) -> ndarray:
        """(R, n), without unreadable images"""
        readable = [key for key in self.keys if outcomes[0][key] != UNREADABLE]
        unreadable = len(self.keys) - len(readable)
        if unreadable > self.evaluator.skip_unreadable:
            raise ValueError(unreadable_message(unreadable, self.dataset))
        if not readable:
            raise ValueError(f"none of the {unreadable} images of {self.dataset.name} that were drawn could be read")
        fallen = np.full((len(outcomes), len(readable)), SURVIVES)
        for column, key in enumerate(readable):
            for radius, own in enumerate(outcomes):
                if own.get(key, SURVIVES) != SURVIVES:
                    fallen[radius:, column] = own[key]
                    break
        return fallen

    @cached_property
    def keys(self) -> list[int]:
        """Of each image: what decides an attack's outcome beside the model, which is its contents, label and seed."""
        dataset, labels = self.dataset, self.dataset.labels or [0] * len(self.dataset.source)  # or the hashes know
        return [
            int(digest(contents, str(label), dataset.source.key(index), str(dataset.cropped))[:15], 16)
            for index, (contents, label) in enumerate(zip(dataset.hashes, labels, strict=True))
        ]

    def _cost(self, text: str) -> int:
        """Forward passes of an image that survives all radii; others cost less."""
        return len(self.balls) * most_passes(self.attacks[text], len(self.dataset.classes))

    def _path(self, model: Classifier, text: str, ball: Ball) -> Path:
        how = (model.key, str(model.preprocessing), str(model.columns(self.dataset.classes)))
        what = (text, str(ball), str(self.evaluator.seed))
        return self.evaluator.folder / f"attack-{digest(FORMAT, *how, *what)}.safetensors"


def _is_known(key: int, outcomes: Outcomes) -> bool:
    """Whether an image is known to fall at some radius, or to survive all."""
    for own in outcomes:
        if own.get(key) != SURVIVES:
            return key in own
    return True


def _robust_accuracy(fallen: ndarray) -> float:
    return 100 * float((fallen == SURVIVES).mean())


def _clean_accuracy(fallen: ndarray) -> float:
    return 100 * float((fallen[0] != WRONG_BEFORE).mean())
