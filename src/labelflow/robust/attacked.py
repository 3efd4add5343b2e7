"""Accuracy under attack: how many images are still answered rightly when each may be moved a little against the model.

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
from labelflow.robust.attacks import ATTACKS, Attack, Ball, Batch, auto_attack, run_attacks
from labelflow.robust.attacks.ensemble import SURVIVES, WRONG_BEFORE, most_passes
from labelflow.robust.kept import read_fates, write_fates
from labelflow.robust.pictures import CLEAN, Pictures, load_pictures
from labelflow.robust.pictures import Batch as Loaded
from labelflow.robust.results import Chart, Finding, Section, uncertainty
from labelflow.robust.session import FORMAT, Session
from labelflow.robust.sets import Set, chosen, digest, image_number, part_of
from labelflow.robust.settings import AUTO, Attacking
from labelflow.spec import build, known, parse

UNREADABLE, UNKNOWN = -3, -2  # what has become of an image, beside what an Outcome tells
Named = list[tuple[str, Attack]]
Fates = list[dict[int, int]]  # of each radius, by an image's number


class Restricted(nn.Module):
    """A model of pictures from 0 to 1 whose answers are restricted to some classes; it is always in eval mode."""

    def __init__(self, model: nn.Module, columns: Tensor | None) -> None:
        super().__init__()
        self.model, self.columns = model, columns

    def forward(self, pictures: Tensor) -> Tensor:
        logits: Tensor = self.model(pictures).float()
        return logits if self.columns is None else logits[:, self.columns]


class Attacked:
    """Accuracy over the radius of each attack. An image that falls at a radius has fallen at all larger ones, too."""

    def __init__(self, session: Session, own: Set, settings: Attacking) -> None:
        self.session, self.settings, self.balls = session, settings, settings.balls
        self.own = chosen(own, settings.attack_samples, session.seed)
        if len(own.classes) < 2:
            raise ValueError(f"an attack needs two classes or more; {own.name} has {len(own.classes)}")
        self.notes: list[str] = []
        self.attacks = {text: self._attack(text, len(own.classes)) for text in settings.attacks}

    def _attack(self, text: str, classes: int) -> Named:
        if text != AUTO:
            name = known(parse(text).name, {AUTO: None, **ATTACKS}, "attack")
            if name == AUTO:
                parts = ", ".join(part for part, _ in auto_attack(classes).attacks)
                raise ValueError(f"{AUTO} takes no settings; its parts do: {parts}")
            attack: Attack = build(text, ATTACKS, "attack")
            attack.passes(classes)  # tells if there are too few classes for it
            return [(text, attack)]
        plan = auto_attack(classes)
        self.notes += [f"{AUTO}: {note}." for note in plan.notes]
        return plan.attacks

    @property
    def passes(self) -> int:
        return len(self.own.source) * len(self.session.models) * sum(map(self._cost, self.attacks))

    def measure(self) -> Section:
        models = self.session.models
        found: dict[str, list[ndarray]] = {}  # attack: of each model (R, n)
        with Counted("attacks", "forward passes", self.passes, quiet=self.session.quiet) as progress:
            for text, attacks in self.attacks.items():
                found[text] = [self._against(model, text, attacks, progress) for model in models]
        rows = {
            (text, name): [_robust(fallen[at]) for fallen in found[text]]
            for text in self.attacks
            for at, name in enumerate(self.balls)
        }
        findings = [Finding(f"{text}, {name}", values) for (text, name), values in rows.items()]
        images = next(iter(found.values()))[0].shape[1]
        return Section(
            "attack",
            "Attacks",
            [Finding("clean, of these images", [_clean(fallen) for fallen in next(iter(found.values()))]), *findings],
            [self._chart(text, found[text]) for text in self.attacks],
            (),
            [f"{images} images, each moved within the ball against the model; {uncertainty(images)}.", *self.notes],
        )

    def _chart(self, text: str, found: list[ndarray]) -> Chart:
        scale = 255 if self.settings.norm == "linf" else 1
        radii = [ball.radius * scale for ball in self.balls.values()]
        lines = {
            model.name: [(0.0, _clean(fallen)), *zip(radii, map(_robust, fallen), strict=True)]
            for model, fallen in zip(self.session.models, found, strict=True)
        }
        across = "radius" + ", in 255ths" * (scale == 255)
        return Chart(f"Top-1 accuracy, %, under {text}", across, lines, reach=max(map(_clean, found)))

    def _against(self, model: Classifier, text: str, attacks: Named, progress: Counted) -> ndarray:
        """(R, n): what has become of each readable image at each radius; kept on disk batch by batch."""
        paths = [self._path(model, text, ball) for ball in self.balls.values()]
        fates = [read_fates(path) for path in paths]  # of each radius, by image
        unsettled = [at for at, image in enumerate(self.images) if not _settled(image, fates)]
        settled = len(self.images) - len(unsettled)
        progress.forgo(settled * self._cost(text))
        self.session.recalled += settled
        if unsettled:
            victim = Restricted(model.model, self.session.columns(model, self.own)).eval()
            unreadable = Unreadable(self.session.skip_unreadable, progress.say)
            pictures = Pictures(part_of(self.own, unsettled), model.preprocessing, (CLEAN,), self.session.seed)
            loader = load_pictures(pictures, self.settings.attack_batch, self.session.workers)
            for first, batch in zip(count(0, self.settings.attack_batch), loader, strict=False):
                unreadable(batch.problems)
                rows = unsettled[first : first + len(batch.labels)]
                images = [self.images[at] for at in rows]
                fates[0] |= {one: UNREADABLE for one, read in zip(images, batch.counts, strict=True) if not read}
                self._batch(victim, attacks, self._clean(batch, rows), images, fates, progress)
                for path, found in zip(paths, fates, strict=True):
                    write_fates(path, found)
        return self._fallen(fates)

    def _clean(self, batch: Loaded, rows: list[int]) -> Batch:
        keys = [image_number(self.own.source, at) for at in rows]
        device = self.session.device
        return Batch(batch.pictures.to(device) / 255, batch.labels.to(device), keys, self.session.seed)

    def _batch(
        self, victim: nn.Module, attacks: Named, clean: Batch, images: list[int], fates: Fates, progress: Counted
    ) -> None:
        """Adds the fates of some images."""
        most = len(images) * most_passes(attacks, len(self.own.classes))
        alive = [row for row, image in enumerate(images) if fates[0].get(image) != UNREADABLE]
        for ball, found in zip(self.balls.values(), fates, strict=True):
            before = progress.worked
            new = [row for row in alive if images[row] not in found]
            if new:
                part = clean.at(torch.tensor(new, device=clean.labels.device))
                fallen = run_attacks(victim, attacks, part, ball, progress.advance).fallen.tolist()
                found |= {images[row]: fate for row, fate in zip(new, fallen, strict=True)}
            alive = [row for row in alive if found[images[row]] == SURVIVES]  # others have fallen in larger balls, too
            self.session.attacked += progress.worked - before
            progress.forgo(most - (progress.worked - before))  # what those that fell have spared

    def _fallen(self, fates: Fates) -> ndarray:
        """(R, n), without images that could not be read"""
        readable = [image for image in self.images if fates[0][image] != UNREADABLE]
        unread = len(self.images) - len(readable)
        if unread > self.session.skip_unreadable or not readable:
            raise ValueError(
                f"{unread} images of {self.own.name} could not be read when they were attacked; mend or remove them"
                + f", or leave them out with --skip-unreadable {unread}" * bool(readable)
            )
        fallen = np.full((len(fates), len(readable)), SURVIVES)
        for column, image in enumerate(readable):
            for radius, found in enumerate(fates):
                if found.get(image, SURVIVES) != SURVIVES:
                    fallen[radius:, column] = found[image]
                    break
        return fallen

    @cached_property
    def images(self) -> list[int]:
        """Numbers of all that decides an image's fate but the model: what is in it, its label, and what it draws."""
        found, labels = self.own, self.own.labels or [0] * len(self.own.source)  # or its contents tell
        return [
            int(digest(contents, str(label), found.source.key(at), str(found.cropped))[:15], 16)
            for at, (contents, label) in enumerate(zip(found.contents, labels, strict=True))
        ]

    def _cost(self, text: str) -> int:
        """In forward passes of an image, at most: those that fall spare the rest."""
        return len(self.balls) * most_passes(self.attacks[text], len(self.own.classes))

    def _path(self, model: Classifier, text: str, ball: Ball) -> Path:
        asked = (model.key, str(model.preprocessing), str(model.columns(self.own.classes)))
        how = (text, str(ball), str(self.session.seed))
        return self.session.folder / f"attack-{digest(FORMAT, *asked, *how)}.safetensors"


def _settled(image: int, fates: Fates) -> bool:
    """Whether an image has fallen at some radius, or survives all."""
    for found in fates:
        if found.get(image, UNKNOWN) != SURVIVES:
            return image in found
    return True


def _robust(fallen: ndarray) -> float:
    return 100 * float((fallen == SURVIVES).mean())


def _clean(fallen: ndarray) -> float:
    return 100 * float((fallen[0] != WRONG_BEFORE).mean())
