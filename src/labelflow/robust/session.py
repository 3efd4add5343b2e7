"""Asks models about pictures. What was asked once is kept on disk, under a key of all that decides the answer."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from labelflow.classifier import Classifier
from labelflow.data import Preprocessing, Unreadable
from labelflow.engine.progress import Counted
from labelflow.robust.answers import Answers
from labelflow.robust.kept import Incoming, read_kept
from labelflow.robust.pictures import CLEAN, AnyChange, LateChange, Pictures, load_pictures
from labelflow.robust.sets import Set, chosen, digest

MANY = 5000  # images whose contents are not read in a moment
FORMAT = "1"  # of what is kept: another one is asked anew


@dataclass
class Session:
    """Models that are compared, and how they are asked."""

    models: Sequence[Classifier]
    folder: Path  # of what is kept
    device: torch.device
    seed: int = 0
    batch: int = 0  # pictures at once; 0: 64, or fewer on a CPU, where large ones at once are slow
    workers: int = -1
    precision: str = "no"
    skip_unreadable: int = 0
    quiet: bool = False
    samples: int = 0  # of a set's images; 0: all
    asked: int = field(default=0, init=False)  # pictures that passed through a model
    recalled: int = field(default=0, init=False)  # pictures whose answers, or fates under attack, were there before
    attacked: int = field(default=0, init=False)  # forward passes of attacks

    def ask(self, found: Set, changes: Sequence[AnyChange] = (CLEAN,), title: str = "") -> list[list[Answers]]:
        """What each model says of a set under each change: [change][model]."""
        total = self.passes(found, changes)
        with Counted(title or found.name, "pictures", total, quiet=self.quiet) as progress:
            if len(found.source) >= MANY:
                progress.say(f"{found.name}: {len(found.source)} images are read once for their key")
            paths = {(model, change): self._path(model, found, change) for model in self.models for change in changes}
            missing = [pair for pair, path in paths.items() if read_kept(path) is None]
            done = total - sum(change.levels * len(found.source) for _, change in missing)
            (progress.skip if missing else progress.pass_over)(done)
            self.recalled += done
            unreadable = Unreadable(self.skip_unreadable, progress.say)
            for preprocessing in dict.fromkeys(model.preprocessing for model, _ in missing):
                alike = [(model, change) for model, change in missing if model.preprocessing == preprocessing]
                self._ask_alike(found, preprocessing, alike, paths, progress, unreadable)
        return [[self._read(paths[model, change], found) for model in self.models] for change in changes]

    def passes(self, found: Set, changes: Sequence[AnyChange] = (CLEAN,)) -> int:
        """How many pictures pass through models if no answer is there yet."""
        return len(self.models) * len(found.source) * sum(change.levels for change in changes)

    def example(self, found: Set, changes: Sequence[AnyChange]) -> list[list[ndarray]]:
        """What the first model sees of the first image that can be read: [change][level], uint8 (S, S, 3)."""
        pictures = Pictures(found, self.models[0].preprocessing, changes, self.seed)
        for index in range(len(found.source)):
            seen = [pictures[number, index] for number in range(len(changes))]
            if not any(one.problem for one in seen):
                shown = [self._arrived(one.levels, change) for one, change in zip(seen, changes, strict=True)]
                return [list((255 * one).round().byte().permute(0, 2, 3, 1).cpu().numpy()) for one in shown]
        return []

    def _arrived(self, pictures: Tensor, change: AnyChange) -> Tensor:
        """uint8 (B, 3, S, S) -> from 0 to 1 where the models are, with what is done to them there"""
        seen = pictures.to(self.device, non_blocking=True).float().div_(255)
        return change.spread(seen) if isinstance(change, LateChange) else seen

    def _batch(self, preprocessing: Preprocessing) -> int:
        return self.batch or (64 if self.device.type != "cpu" else max(2, 4 * 224**2 // preprocessing.size**2))

    def _ask_alike(
        self,
        found: Set,
        preprocessing: Preprocessing,
        missing: list[tuple[Classifier, AnyChange]],
        paths: dict[tuple[Classifier, AnyChange], Path],
        progress: Counted,
        unreadable: Unreadable,
    ) -> None:
        """Models that see alike, from one loader."""
        changes = list(dict.fromkeys(change for _, change in missing))
        asked = {change: {one.name: one for one, other in missing if other is change} for change in changes}
        incoming = {
            change: Incoming({name: paths[model, change] for name, model in models.items()}, change.levels)
            for change, models in asked.items()
        }
        firsts = [incoming[change].images for change in changes]
        pictures = Pictures(found, preprocessing, changes, self.seed)
        loader = iter(load_pictures(pictures, self._batch(preprocessing), self.workers, firsts))
        for change, models in asked.items():
            columns = {name: self.columns(model, found) for name, model in models.items()}
            begun = incoming[change].images * change.levels * len(models)
            progress.pass_over(begun)
            self.recalled += begun
            with incoming[change] as coming:
                while coming.images < len(found.source):
                    batch = next(loader)
                    unreadable(batch.problems)
                    seen = self._arrived(batch.pictures, change)
                    logits = {}
                    for name, model in models.items():
                        logits[name] = self.logits(model, seen, columns[name])
                        progress.advance(len(seen))
                    self.asked += len(models) * len(seen)
                    coming.add(logits, batch.labels, batch.counts)
                coming.finish()

    def columns(self, model: Classifier, found: Set) -> Tensor | None:
        """The places of a set's classes in a model's logits; None: all of them, one by one."""
        places = model.columns(found.classes)
        return None if places is None else torch.tensor(places, device=self.device)

    @torch.no_grad()  # not inference mode: models that keep tensors could not be attacked afterwards
    def logits(self, model: Classifier, seen: Tensor, columns: Tensor | None) -> Tensor:
        """Of pictures from 0 to 1: (B, C), in float32"""
        precision = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.precision)
        with torch.autocast(self.device.type, precision) if precision else nullcontext():
            logits = model.model(seen).float()
        return logits if columns is None else logits[:, columns]

    def _read(self, path: Path, found: Set) -> Answers:
        """With the set's own labels: other sets may have others for the same images."""
        kept = read_kept(path)
        assert kept is not None
        answers = Answers(**kept)
        unread = int((~answers.counts).sum())
        if unread > self.skip_unreadable:
            raise ValueError(
                f"{unread} images of {found.name} could not be read when they were asked about; mend or remove them, "
                f"or leave them out with --skip-unreadable {unread}"
            )
        return answers if found.labels is None else replace(answers, labels=np.array(found.labels, np.int32))

    def pick(self, found: Set) -> Set:
        """As many of its images as are to be asked about."""
        return chosen(found, self.samples, self.seed)

    def _path(self, model: Classifier, found: Set, change: AnyChange) -> Path:
        chance = "" if isinstance(change, LateChange) else f"{self.seed} {found.draws}"
        asked = (model.key, str(model.preprocessing), str(model.columns(found.classes)), self.precision)
        about = (found.key, str(found.cropped), change.key, chance)
        return self.folder / f"{digest(FORMAT, *asked, *about)}.safetensors"
