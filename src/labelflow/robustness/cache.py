"""What models predicted, on disk: whole predictions, and those that were interrupted.

Shapes: L levels (of a corruption, say), N images, K best classes, C classes.
"""

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy import ndarray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from torch import Tensor

from labelflow.files import atomic_write
from labelflow.tasks.multilabel import average_precisions

TOP_K = 10  # classes that are stored for each image
SAVE_EVERY = 60  # seconds between saves of unfinished predictions


@dataclass(frozen=True)
class Predictions:
    """The best classes of each image, all of them where it may have several labels, and what else metrics need of the
    logits."""

    classes: ndarray  # (L, N, K) int32, the likeliest first
    logits: ndarray  # (L, N, K) float32: theirs
    logsumexp: ndarray  # (L, N) float32, over all classes
    labels: ndarray  # (N,) int32; or (N, C), 0 and 1, where images have several
    readable: ndarray  # (N,) bool; unreadable images don't count

    @property
    def correct(self) -> ndarray:
        """(L, n), for the n readable images"""
        return (self.classes[:, :, 0] == self.labels)[:, self.readable]

    @property
    def top1(self) -> list[float]:
        """Percent, at each level."""
        return _percent(self.correct)

    @property
    def score(self) -> list[float]:
        """How right they are at each level, in percent: `ImageSet.metric`, top-1 accuracy or mAP."""
        return self.top1 if self.labels.ndim == 1 else self.map

    @property
    def map(self) -> list[float]:
        """Mean average precision over the classes that some image shows."""
        labels = self.labels[self.readable] > 0
        if not labels.any():
            raise ValueError("none of the images could be read and has a label")
        scores = np.empty_like(self.logits)  # (L, N, C), in the order of classes
        np.put_along_axis(scores, self.classes.astype(np.int64), self.logits, 2)
        levels = (average_precisions(level, labels) for level in scores[:, self.readable])
        return [100 * float(np.nanmean(level)) for level in levels]

    @property
    def top5(self) -> list[float]:
        return _percent((self.classes[:, :, :5] == self.labels[:, None]).any(2)[:, self.readable])

    @property
    def confidence(self) -> ndarray:
        """(L, n): the probability of the likeliest class"""
        return np.exp(self.logits[:, :, 0] - self.logsumexp)[:, self.readable]

    def head(self, images: int) -> "Predictions":
        """For the first images."""
        first = (self.classes[:, :images], self.logits[:, :images], self.logsumexp[:, :images])
        return Predictions(*first, self.labels[:images], self.readable[:images])

    def correct_among(self, label_sets: Sequence[frozenset[int]]) -> ndarray:
        """(L, m): whether the likeliest class is one of an image's labels, for the m readable images that have any"""
        labelled = [index for index, labels in enumerate(label_sets) if labels and self.readable[index]]
        if not labelled:
            raise ValueError("none of the images is both readable and labelled")
        return np.array([[int(level[index, 0]) in label_sets[index] for index in labelled] for level in self.classes])


def summarise(logits: Tensor, several: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """The best classes (B, K) of logits (B, C), their logits (B, K), and log Σ exp (B,). several: K is C."""
    best = logits.topk(logits.shape[1] if several else min(TOP_K, logits.shape[1]))
    return best.indices.int(), best.values, logits.logsumexp(1)


def gather(summaries: Sequence[tuple[Tensor, ...]], levels: int, labels: Tensor, readable: Tensor) -> Predictions:
    """From summaries of batches, in which the levels of each image follow one another; labels and readable (N,)."""
    parts = (torch.cat(part).cpu().unflatten(0, (-1, levels)).transpose(0, 1) for part in zip(*summaries, strict=True))
    classes, logits, logsumexp = (part.numpy() for part in parts)
    return Predictions(classes, logits, logsumexp, labels.int().numpy(), readable.numpy())


def concatenate(parts: Sequence[Predictions]) -> Predictions:
    """Predictions for batches, one after the other."""
    by_level = ("classes", "logits", "logsumexp")
    return Predictions(
        **{name: np.concatenate([getattr(part, name) for part in parts], 1) for name in by_level},
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in ("labels", "readable")},
    )


def _percent(correct: ndarray) -> list[float]:
    if not correct.shape[1]:
        raise ValueError("none of the images could be read")
    return [100 * float(level.mean()) for level in correct]


def write_arrays(path: Path, arrays: Mapping[str, ndarray]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    with atomic_write(path, mark=f".{os.getpid()}") as draft:  # another process may write the same file
        try:
            save_file(whole, draft, {"sha256": _checksum(path.name, whole)})
        except SafetensorError as error:  # a full disk
            raise OSError(f"cannot write {path}: {error}") from None


def read_arrays(path: Path) -> dict[str, ndarray] | None:
    """None if the file is missing, damaged, or another one."""
    try:
        with safe_open(path, "numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 it is no dictionary
            expected = (file.metadata() or {}).get("sha256")
    except (FileNotFoundError, SafetensorError):
        return None
    return arrays if _checksum(path.name, arrays) == expected else None


def _checksum(file: str, arrays: Mapping[str, ndarray]) -> str:
    """Of arrays and the name of their file, which says what was predicted."""
    found = hashlib.sha256(file.encode())
    for name, array in sorted(arrays.items()):
        found.update(f"{name} {array.dtype} {array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()


def write_outcomes(path: Path, outcomes: Mapping[int, int]) -> None:
    """What an attack did to images, by the images' keys."""
    keys, values = np.array(list(outcomes), np.int64), np.array(list(outcomes.values()), np.int8)
    write_arrays(path, {"images": keys, "outcomes": values})


def read_outcomes(path: Path) -> dict[int, int]:
    arrays = read_arrays(path)
    return dict(zip(arrays["images"].tolist(), arrays["outcomes"].tolist(), strict=True)) if arrays else {}


class PredictionWriter:
    """Collects the predictions of several models for the same images. A context manager: unfinished predictions are
    saved now and then and on early exit, and the next writer resumes from there."""

    def __init__(self, paths: Mapping[str, Path], levels: int) -> None:
        """paths: where the finished predictions of each model go, by its name."""
        self.paths, self.levels, self.saved = paths, levels, time.monotonic()
        partial = {name: read_arrays(_partial(path)) for name, path in paths.items()}
        before = {name: Predictions(**arrays) for name, arrays in partial.items() if arrays}
        self.images = min(len(before[name].labels) if name in before else 0 for name in paths)  # done by all models
        self.parts = {name: [before[name].head(self.images)] if self.images else [] for name in paths}
        self._clear()

    def _clear(self) -> None:
        self.summaries: dict[str, list[tuple[Tensor, ...]]] = {name: [] for name in self.paths}
        self.labels: list[Tensor] = []
        self.readable: list[Tensor] = []

    def add(self, logits: Mapping[str, Tensor], labels: Tensor, readable: Tensor) -> None:
        """The next images: each model's logits (B·L, C), which stay on their device until they are saved."""
        for name, own in logits.items():
            self.summaries[name].append(summarise(own, several=labels.ndim == 2))
        self.labels.append(labels)
        self.readable.append(readable)
        self.images += len(labels)
        if time.monotonic() - self.saved > SAVE_EVERY:
            self._save()

    def finish(self) -> None:
        """Writes the finished predictions."""
        self._gather()
        for name, path in self.paths.items():
            write_arrays(path, vars(concatenate(self.parts.pop(name))))
            _partial(path).unlink(missing_ok=True)

    def _gather(self) -> None:
        if not self.labels:
            return
        labels, readable = torch.cat(self.labels), torch.cat(self.readable)
        summaries = self.summaries
        self._clear()
        for name, own in summaries.items():
            predictions = gather(own, self.levels, labels, readable)
            if not np.isfinite(predictions.logsumexp).all():
                raise ValueError(
                    f"the logits of {name} are NaN or infinite; if --precision is not 'no', try without it"
                )
            self.parts[name].append(predictions)

    def _save(self) -> None:
        self._gather()
        for name, parts in self.parts.items():
            if parts:
                self.parts[name] = [concatenate(parts)]
                write_arrays(_partial(self.paths[name]), vars(self.parts[name][0]))
        self.saved = time.monotonic()

    def __enter__(self) -> "PredictionWriter":
        return self

    def __exit__(self, *error: object) -> None:
        if self.parts:  # not finished
            self._save()


def _partial(path: Path) -> Path:
    return path.with_suffix(".partial")
