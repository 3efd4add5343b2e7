"""What a model said about images, kept so that every metric can be had from it without asking again.

Shapes: L levels (of a corruption, say), N images, K best classes, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

BEST = 10  # classes that are kept of each answer


@dataclass(frozen=True)
class Answers:
    """The best classes of each image, and what else metrics need of the logits."""

    places: ndarray  # (L, N, K) int32: classes, the likeliest first
    logits: ndarray  # (L, N, K) float32: theirs
    normaliser: ndarray  # (L, N) float32: log Σ exp over all classes
    labels: ndarray  # (N,) int32
    counts: ndarray  # (N,) bool: False where an image could not be read

    @property
    def correct(self) -> ndarray:
        """(L, n): of the n images that count"""
        return (self.places[:, :, 0] == self.labels)[:, self.counts]

    @property
    def top1(self) -> list[float]:
        """Percent, at each level."""
        return _percent(self.correct)

    @property
    def top5(self) -> list[float]:
        return _percent((self.places[:, :, :5] == self.labels[:, None]).any(2)[:, self.counts])

    @property
    def confidence(self) -> ndarray:
        """(L, n): the probability of the likeliest class"""
        return np.exp(self.logits[:, :, 0] - self.normaliser)[:, self.counts]

    def head(self, images: int) -> "Answers":
        """Of the first images."""
        firsts = (self.places[:, :images], self.logits[:, :images], self.normaliser[:, :images])
        return Answers(*firsts, self.labels[:images], self.counts[:images])

    def among(self, truths: Sequence[frozenset[int]]) -> ndarray:
        """(L, m): whether the likeliest class is one of an image's right ones, of the m images that have any"""
        asked = [at for at, truth in enumerate(truths) if truth and self.counts[at]]
        if not asked:
            raise ValueError("there is no image that could be read and has an answer")
        return np.array([[int(level[at, 0]) in truths[at] for at in asked] for level in self.places])


def summarise(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of logits (B, C): the best classes (B, K), their logits (B, K), and log Σ exp (B,)."""
    best = logits.topk(min(BEST, logits.shape[1]))
    return best.indices.int(), best.values, logits.logsumexp(1)


def gathered(parts: Sequence[tuple[Tensor, ...]], levels: int, labels: Tensor, counts: Tensor) -> Answers:
    """Of summaries of batches, in which the levels of each image follow one another; labels and counts (N,)."""
    turned = (torch.cat(part).cpu().unflatten(0, (-1, levels)).transpose(0, 1) for part in zip(*parts, strict=True))
    places, logits, normaliser = (one.numpy() for one in turned)
    return Answers(places, logits, normaliser, labels.int().numpy(), counts.numpy())


def joined(parts: Sequence[Answers]) -> Answers:
    """Of batches, one after the other."""
    over_levels = ("places", "logits", "normaliser")
    return Answers(
        **{name: np.concatenate([getattr(part, name) for part in parts], 1) for name in over_levels},
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in ("labels", "counts")},
    )


def _percent(correct: ndarray) -> list[float]:
    if not correct.shape[1]:
        raise ValueError("there is no image that could be read")
    return [100 * float(level.mean()) for level in correct]
