"""Answers on disk: whole ones, and what there is of those that are not whole yet."""

import os
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy import ndarray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from torch import Tensor

from labelflow.engine.run import whole_file
from labelflow.robust.answers import Answers, gathered, joined, summarise

SECONDS = 60  # between two times that unfinished answers are kept


def write_kept(path: Path, values: Mapping[str, ndarray]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path, mark=f".{os.getpid()}") as draft:  # another command may write the same
        save_file({name: np.ascontiguousarray(value) for name, value in values.items()}, draft)


def read_kept(path: Path) -> dict[str, ndarray] | None:
    """None: it is not there, or damaged."""
    try:
        return load_file(path)
    except (FileNotFoundError, SafetensorError):
        return None


def write_fates(path: Path, fates: Mapping[int, int]) -> None:
    """What has become of images under an attack, by their numbers."""
    numbers, found = np.array(list(fates), np.int64), np.array(list(fates.values()), np.int8)
    write_kept(path, {"images": numbers, "fates": found})


def read_fates(path: Path) -> dict[int, int]:
    kept = read_kept(path)
    return dict(zip(kept["images"].tolist(), kept["fates"].tolist(), strict=True)) if kept else {}


class Incoming:
    """The answers of several models to the same pictures, as they come in. Used as a context: what there is of them is
    kept now and then, and when it is left too early; the next one goes on from there."""

    def __init__(self, paths: Mapping[str, Path], levels: int) -> None:
        """paths: where the whole answers of each model go, by its name."""
        self.paths, self.levels, self.told = paths, levels, time.monotonic()
        begun = {name: read_kept(_begun(path)) for name, path in paths.items()}
        before = {name: Answers(**kept) for name, kept in begun.items() if kept}
        self.images = min(len(before[name].labels) if name in before else 0 for name in paths)  # that all have answered
        self.parts = {name: [before[name].head(self.images)] if self.images else [] for name in paths}
        self._new()

    def _new(self) -> None:
        self.summaries: dict[str, list[tuple[Tensor, ...]]] = {name: [] for name in self.paths}
        self.labels: list[Tensor] = []
        self.counts: list[Tensor] = []

    def add(self, logits: Mapping[str, Tensor], labels: Tensor, counts: Tensor) -> None:
        """Of the next images: of each model (B·L, C), which stays where it is until it is kept."""
        for name, own in logits.items():
            self.summaries[name].append(summarise(own))
        self.labels.append(labels)
        self.counts.append(counts)
        self.images += len(labels)
        if time.monotonic() - self.told > SECONDS:
            self._keep()

    def finish(self) -> None:
        """These were all."""
        self._gather()
        for name, path in self.paths.items():
            write_kept(path, vars(joined(self.parts.pop(name))))
            _begun(path).unlink(missing_ok=True)

    def _gather(self) -> None:
        if not self.labels:
            return
        labels, counts = torch.cat(self.labels), torch.cat(self.counts)
        summaries = self.summaries
        self._new()
        for name, own in summaries.items():
            found = gathered(own, self.levels, labels, counts)
            if not np.isfinite(found.normaliser).all():
                raise ValueError(f"{name}'s logits are not finite (NaN or infinite); mixed precision may be why")
            self.parts[name].append(found)

    def _keep(self) -> None:
        self._gather()
        for name, parts in self.parts.items():
            if parts:
                self.parts[name] = [joined(parts)]
                write_kept(_begun(self.paths[name]), vars(self.parts[name][0]))
        self.told = time.monotonic()

    def __enter__(self) -> "Incoming":
        return self

    def __exit__(self, *error: object) -> None:
        if self.parts:  # it is not finished
            self._keep()


def _begun(path: Path) -> Path:
    return path.with_suffix(".begun")
