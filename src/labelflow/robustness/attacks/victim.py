"""What attacks share: the attacked model, the images they start from, and attempts one after another.

B batch, C classes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from itertools import product
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from labelflow.chance import generator
from labelflow.robustness.attacks.ball import Ball
from labelflow.robustness.attacks.losses import Objective

ATTACK = 100  # the purpose of an attack's draws, beside those of labelflow.chance.Purpose
FORWARD, GRADIENT = 1, 3  # what each costs, in forward passes


class Draws(IntEnum):
    """Which attack draws. Two of them never share a draw."""

    PGD = 0
    APGD = 1
    APGD_T = 2
    FAB_T = 3
    SQUARE = 4


class Batch(NamedTuple):
    """Images (B, channels, height, width) in [0, 1], their labels (B,), and numbers that identify them.

    Chance is a function of the seed and an image's key. What happens to an image therefore depends neither on those
    beside it nor on which of them have fallen.
    """

    images: Tensor
    labels: Tensor
    keys: Sequence[int]
    seed: int = 0

    def at(self, rows: Tensor) -> "Batch":
        return Batch(self.images[rows], self.labels[rows], [self.keys[row] for row in rows.tolist()], self.seed)

    def generators(self, draws: Draws, *more: int) -> list[torch.Generator]:
        """One for each image, on the CPU."""
        return [generator(self.seed, ATTACK, draws, key, *more) for key in self.keys]


class Slope(NamedTuple):
    """An objective (B,) and its gradient with respect to the images, with the logits (B, C) behind it."""

    value: Tensor
    gradient: Tensor
    logits: Tensor


class Victim:
    """A model from images in [0, 1] to logits. `tick` is called with each cost, in forward passes of an image."""

    def __init__(self, model: Callable[[Tensor], Tensor], tick: Callable[[int], None] = lambda cost: None) -> None:
        self.model, self.tick, self.passes = model, tick, 0

    def logits(self, images: Tensor) -> Tensor:
        """(B, C), without a gradient."""
        with torch.no_grad():
            return self._forward(images, FORWARD)

    def slope(self, images: Tensor, objective: Objective, labels: Tensor, targets: Tensor) -> Slope:
        """An objective and how it rises. The parameters' `.grad` is unchanged."""
        with torch.enable_grad():
            images = images.detach().clone().requires_grad_()
            logits = self._forward(images, GRADIENT)
            if not logits.requires_grad:
                raise ValueError("the model has no gradient with respect to its images; only square does without")
            value = objective(logits, labels, targets)
            (gradient,) = torch.autograd.grad(value.sum(), images)
        return Slope(value.detach(), gradient.nan_to_num(0, 0, 0), logits.detach())

    def _forward(self, images: Tensor, cost: int) -> Tensor:
        logits = self.model(images)
        if logits.ndim != 2 or logits.shape[1] < 2:
            raise ValueError(f"an attack needs logits of at least two classes, (B, C); the model's: {logits.shape}")
        if not logits.isfinite().all():
            raise ValueError("the model's logits are not finite (NaN or infinite), so it cannot be attacked")
        self.passes += cost * len(images)
        self.tick(cost * len(images))
        return logits


class Adversarial(NamedTuple):
    """Moved images, and which of them (B,) the model gets wrong."""

    images: Tensor
    fooled: Tensor


class Attack(Protocol):
    """Moves images within a ball so that a model gets them wrong: its best points, whether they do or not."""

    def passes(self, classes: int) -> int:
        """What an image costs at most, in forward passes."""

    def __call__(self, victim: Victim, batch: Batch, ball: Ball) -> Tensor: ...


class Attempt(Protocol):
    """One try on images, given a wrong class for each (B,); draws differ by rank and restart."""

    def __call__(self, batch: Batch, targets: Tensor, rank: int, restart: int) -> Adversarial: ...


def attempts(victim: Victim, batch: Batch, attempt: Attempt, *, targets: int = 1, restarts: int = 1) -> Tensor:
    """Attempts for each wrong class in turn, each on the images that the ones before it could not fool.

    Images that the model gets wrong already are unchanged.
    """
    moved = batch.images.clone()
    logits = victim.logits(batch.images)  # (B, C)
    rows = (logits.argmax(1) == batch.labels).nonzero()[:, 0]
    for rank, restart in product(range(min(targets, logits.shape[1] - 1)), range(restarts)):
        if not len(rows):
            break
        remaining = batch.at(rows)
        adversarial = attempt(remaining, target(logits[rows], remaining.labels, rank), rank, restart)
        moved[rows] = adversarial.images
        rows = rows[~adversarial.fooled]
    return moved


def target(logits: Tensor, labels: Tensor, rank: int) -> Tensor:
    """(B,): the wrong class that the model takes to be the likeliest but `rank`.

    >>> target(torch.tensor([[5.0, 1.0, 3.0]]), torch.tensor([0]), rank=1)
    tensor([1])
    """
    own = nn.functional.one_hot(labels, logits.shape[1]).bool()
    return logits.masked_fill(own, -torch.inf).argsort(dim=1, descending=True, stable=True)[:, rank]


def at_least(least: int, **settings: int) -> None:
    """A ValueError if one of the settings is below what it has to be."""
    for name, value in settings.items():
        if not isinstance(value, int) or value < least:
            raise ValueError(f"{name} must be an integer of at least {least}, not {value}")


@contextmanager
def evaluating(model: object) -> Iterator[None]:
    """Inside, the model is in eval mode; after, each of its modules is in the mode that it was in."""
    modes = [(module, module.training) for module in model.modules()] if isinstance(model, nn.Module) else []
    if isinstance(model, nn.Module):
        model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
