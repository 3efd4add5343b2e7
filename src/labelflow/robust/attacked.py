"""Accuracy under attack: how many images are still answered rightly when each may be moved a little against the model.

Shapes: R radii, n images.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor, nn

from labelflow.data import Unreadable
from labelflow.engine.progress import Counted
from labelflow.robust.attacks import ATTACKS, Attack, Ball, Batch, auto_attack, run_attacks
from labelflow.robust.attacks.ensemble import SURVIVES, WRONG_BEFORE
from labelflow.robust.judged import Judged
from labelflow.robust.pictures import CLEAN, Pictures, load_pictures
from labelflow.robust.results import Chart, Finding, Section, uncertainty
from labelflow.robust.session import FORMAT, Session, read_kept, write_kept
from labelflow.robust.sets import Set, chosen, digest, image_number
from labelflow.spec import build, known, parse

AUTO = "autoattack"
UNREADABLE, UNKNOWN = -3, -2  # what has become of an image, beside what an Outcome tells
Named = list[tuple[str, Attack]]


@dataclass(frozen=True)
class Attacking:
    """Which attacks, how strong, on how many images."""

    attacks: tuple[str, ...] = ("fgsm", "pgd", AUTO)
    """autoattack is the standard four in turn; others by name, with settings where wanted: 'pgd(steps=40)', apgd_ce,
    apgd_dlr, apgd_t, fab_t, square."""
    norm: Literal["linf", "l2"] = "linf"
    """How far an image may be moved: each pixel by the radius at most (linf), or all together (l2)."""
    radii: tuple[float, ...] = ()
    """For linf in 255ths, 1 4 if none is given; for l2, of colours from 0 to 1, 0.5 3. Many make a curve, such as 0.25
    0.5 1 2 4: an image that falls is not attacked again at larger ones."""
    attack_samples: int = 100
    """So many images are attacked, drawn with --seed; 0: all."""
    attack_batch: int = 50
    """So many are attacked at once, and kept when they are done."""

    def __post_init__(self) -> None:
        if self.attack_samples < 0 or self.attack_batch < 1 or not self.attacks:
            raise ValueError("attacks need a name at least, --attack-samples from 0 on and --attack-batch from 1 on")
        if any(radius <= 0 for radius in self.radii):
            raise ValueError(f"--radii must be above 0, not {self.radii}")

    @property
    def balls(self) -> dict[str, Ball]:
        """By what people call them, the smallest first."""
        if self.norm == "l2":
            return {f"L2 {radius:g}": Ball("l2", radius) for radius in sorted(self.radii or (0.5, 3))}
        radii = sorted(self.radii or (1, 4))
        return {f"L∞ {radius:g}/255": Ball("linf", radius / 255) for radius in radii}


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
        self.notes: list[str] = []
        self.attacks = {text: self._attack(text, len(own.classes)) for text in settings.attacks}

    def _attack(self, text: str, classes: int) -> Named:
        if text != AUTO:
            known(parse(text).name, {AUTO: None, **ATTACKS}, "attack")
            attack: Attack = build(text, ATTACKS, "attack")
            attack.passes(classes)  # tells if there are too few classes for it
            return [(text, attack)]
        plan = auto_attack(classes)
        self.notes += [f"{AUTO}: {note}." for note in plan.notes]
        return plan.attacks

    def measure(self) -> Section:
        models, images = self.session.models, len(self.own.source)
        total = images * len(models) * sum(map(self._cost, self.attacks))
        found: dict[str, list[ndarray]] = {}  # attack: of each model (R, n)
        with Counted("attacks", "forward passes", total, quiet=self.session.quiet) as progress:
            for text, attacks in self.attacks.items():
                found[text] = [self._against(model, text, attacks, progress) for model in models]
        rows = {
            (text, name): [_robust(fallen[at]) for fallen in found[text]]
            for text in self.attacks
            for at, name in enumerate(self.balls)
        }
        findings = [Finding(f"{text}, {name}", values) for (text, name), values in rows.items()]
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
        return Chart(f"Top-1 accuracy, %, under {text}", "radius" + ", in 255ths" * (scale == 255), lines)

    def _against(self, model: Judged, text: str, attacks: Named, progress: Counted) -> ndarray:
        """(R, n): what has become of each image at each radius; kept on disk batch by batch."""
        path, images = self._path(model, text), len(self.own.source)
        kept = read_kept(path)
        fallen = kept["fallen"] if kept else np.full((len(self.balls), images), UNKNOWN, np.int8)
        done = int((fallen[0] != UNKNOWN).sum())
        progress.pass_over(done * self._cost(text))
        if done == images:
            return _readable(fallen, self.own)
        victim = Restricted(model.model, self.session.columns(model, self.own)).eval()
        unreadable = Unreadable(self.session.skip_unreadable, progress.say)
        pictures = Pictures(self.own, model.look, (CLEAN,), self.session.seed)
        first = 0
        for batch in load_pictures(pictures, self.settings.attack_batch, self.session.workers):
            last = first + len(batch.labels)
            if (fallen[0, first:last] == UNKNOWN).any():
                unreadable(batch.problems)
                keys = [image_number(self.own.source, at) for at in range(first, last)]
                device = self.session.device
                clean = Batch(batch.pictures.to(device) / 255, batch.labels.to(device), keys, self.session.seed)
                fallen[:, first:last] = self._batch(
                    victim, attacks, clean, _ticks(progress, len(keys) * self._cost(text))
                )
                fallen[:, first:last][:, ~batch.counts.numpy()] = UNREADABLE
                write_kept(path, {"fallen": fallen})
            first = last
        return _readable(fallen, self.own)

    def _batch(self, victim: nn.Module, attacks: Named, clean: Batch, tick: Callable[[float], None]) -> ndarray:
        """(R, images)"""
        fallen = torch.full((len(self.balls), len(clean.labels)), SURVIVES)
        left = torch.arange(len(clean.labels))
        for at, ball in enumerate(self.balls.values()):
            if len(left):
                part = clean.at(left.to(clean.labels.device))
                told = partial(_part_of, tick, at, len(self.balls))
                outcome = run_attacks(victim, attacks, part, ball, told).fallen.cpu()
                fallen[at:, left] = outcome  # what falls here falls in larger balls, too
                left = left[outcome == SURVIVES]
            tick((at + 1) / len(self.balls))
        return fallen.to(torch.int8).numpy()

    def _cost(self, text: str) -> int:
        """In forward passes of an image, at most: those that fall spare the rest."""
        classes = len(self.own.classes)
        return len(self.balls) * sum(attack.passes(classes) for _, attack in self.attacks[text])

    def _path(self, model: Judged, text: str) -> Path:
        asked = (model.key, str(model.look), str(model.columns(self.own.classes)))
        about = (self.own.key, self.own.draws, str(self.own.labels), str(self.own.cropped))
        how = (text, str(list(self.balls)), str(self.session.seed))
        return self.session.folder / f"attack-{digest(FORMAT, *asked, *about, *how)}.safetensors"


def _ticks(progress: Counted, passes: int) -> Callable[[float], None]:
    """From the part of a batch that is done to forward passes, of which there are so many."""
    told = 0.0

    def tick(part: float) -> None:
        nonlocal told
        progress.advance((part - told) * passes)
        told = part

    return tick


def _part_of(tick: Callable[[float], None], piece: int, pieces: int, part: float) -> None:
    """So much of one piece of several is done."""
    tick((piece + part) / pieces)


def _readable(fallen: ndarray, found: Set) -> ndarray:
    """Without images that could not be read."""
    left = fallen[:, fallen[0] != UNREADABLE]
    if not left.size:
        raise ValueError(f"there is no image of {found.name} that could be read")
    return left


def _robust(fallen: ndarray) -> float:
    return 100 * float((fallen == SURVIVES).mean())


def _clean(fallen: ndarray) -> float:
    return 100 * float((fallen[0] != WRONG_BEFORE).mean())
