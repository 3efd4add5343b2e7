"""Which samples an epoch of unbalanced data has: images of rare classes more often, those of frequent ones less.

A sampling says how often an image should come, relative to others. An epoch stays as long as it is, so images come
that often on average, and in each epoch that often rounded down or up: a function of (seed, epoch).

Shapes: N samples, C classes.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy import ndarray
from torch import Generator, Tensor

from labelflow.chance import Purpose, generator
from labelflow.data.batches import Order, shuffled
from labelflow.data.class_labels import class_counts, labels_of
from labelflow.data.sources import Stream
from labelflow.data.views import Source
from labelflow.spec import build

Rates = Callable[[ndarray, ndarray], ndarray]  # from labels (N,) or (N, C) and images of each class (C,) to (N,)


def uniform() -> None:
    """Each sample once."""


def balanced() -> Rates:
    return power(0)


def sqrt() -> Rates:
    return power(0.5)


def power(p: float = 0.5) -> Rates:
    """A class of n images has a part of the epoch in proportion to n**p: 1 as it is, 0 as much as any other class."""
    if not 0 <= p <= 1:
        raise ValueError(f"sampling: p, a power of a class's size, must lie in [0, 1], not {p}")
    return partial(_power_rates, p=p)


def _power_rates(labels: ndarray, counts: ndarray, p: float) -> ndarray:
    if labels.ndim == 2:
        raise ValueError("images that have several classes can't be balanced by class: --sampling repeat_factor")
    return np.maximum(counts, 1).astype(float)[labels] ** (p - 1)


def repeat_factor(threshold: float = 0.001) -> Rates:
    """max(1, √(threshold / f)) for the rarest class of an image, which a fraction f of all images has (Gupta et al.,
    2019: LVIS)."""
    if not 0 < threshold <= 1:
        raise ValueError(f"sampling: threshold, a fraction of all images, must lie in (0, 1], not {threshold}")
    return partial(_repeat_rates, threshold=threshold)


def _repeat_rates(labels: ndarray, counts: ndarray, threshold: float) -> ndarray:
    rarest = counts[counts > 0].min() / len(labels)
    if threshold <= rarest:
        raise ValueError(
            f"repeat_factor(threshold={threshold:g}) repeats nothing: the rarest class is in {rarest:.3g} of all "
            "images; choose a larger threshold"
        )
    factors = np.sqrt(np.maximum(1, threshold * len(labels) / np.maximum(counts, 1)))  # (C,)
    return np.where(labels, factors, 1).max(1) if labels.ndim == 2 else factors[labels]


SAMPLINGS: dict[str, Callable[..., Rates | None]] = {
    made.__name__: made for made in (uniform, balanced, sqrt, power, repeat_factor)
}


def make_order(sampling: str, source: Source | Stream, seed: int) -> Order | None:
    """Which samples each epoch has, as a recipe says; None for those of a stream, which can't be chosen.

    >>> from labelflow.data import World
    >>> order = make_order("balanced", World("train", 8), seed=0)
    >>> sorted(order(0).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    rates: Rates | None = build(sampling, SAMPLINGS, "sampling")
    if rates is None:
        return None if isinstance(source, Stream) else shuffled(len(source), seed)
    labels = labels_of(source)
    wanted = rates(labels, class_counts(labels, len(source.classes)))
    strata = np.unique(labels if labels.ndim == 1 else wanted, return_inverse=True)[1]  # (N,)
    if strata.max() < 2**16:
        strata = strata.astype(np.uint16)  # which numpy sorts ten times as fast
    return partial(_epoch, wanted=torch.from_numpy(wanted), strata=strata, seed=seed)


def _epoch(epoch: int, wanted: Tensor, strata: ndarray, seed: int) -> Tensor:
    """(N,): samples in proportion to what is wanted (N,)."""
    chance = generator(seed, Purpose.ORDER, epoch)
    mixed = torch.randperm(len(wanted), generator=chance)
    mixed = mixed[strata[mixed].argsort(kind="stable")]  # class by class, at random within it
    times = rounded(wanted[mixed], chance)
    return mixed.repeat_interleave(times)[torch.randperm(len(wanted), generator=chance)]


def rounded(wanted: Tensor, chance: Generator) -> Tensor:
    """Whole numbers in proportion to others (N,), of sum N: each is what is wanted, rounded down or up, and on average
    just that. So is the sum of those in a row: systematic sampling."""
    ends = wanted.double().cumsum(0)
    ends = ends * (len(wanted) / ends[-1]) + torch.rand(1, generator=chance, dtype=torch.float64)
    ends = ends.floor().long().clamp(max=len(wanted))
    ends[-1] = len(wanted)
    return ends.diff(prepend=ends.new_zeros(1))
