"""FGSM (Goodfellow et al. 2015) and PGD (Madry et al. 2018): steps along the gradient of the cross-entropy."""

from dataclasses import dataclass

import torch
from torch import Tensor

from labelflow.robustness.attacks.ball import Ball
from labelflow.robustness.attacks.losses import cross_entropy
from labelflow.robustness.attacks.victim import FORWARD, GRADIENT, Adversarial, Batch, Draws, Victim, at_least, attempts


@dataclass(frozen=True)
class FGSM:
    """One step as long as the ball's radius."""

    def passes(self, classes: int) -> int:
        return 2 * FORWARD + GRADIENT

    def __call__(self, victim: Victim, batch: Batch, ball: Ball) -> Tensor:
        def attempt(batch: Batch, targets: Tensor, rank: int, restart: int) -> Adversarial:
            return descend(victim, batch, ball, batch.images, steps=1, size=ball.radius)

        return attempts(victim, batch, attempt)


@dataclass(frozen=True)
class PGD:
    """Steps of 2.5 radii together, from a point drawn in the ball."""

    steps: int = 40
    restarts: int = 1

    def __post_init__(self) -> None:
        at_least(1, steps=self.steps, restarts=self.restarts)

    def passes(self, classes: int) -> int:
        return FORWARD + self.restarts * (self.steps * GRADIENT + FORWARD)

    def __call__(self, victim: Victim, batch: Batch, ball: Ball) -> Tensor:
        def attempt(batch: Batch, targets: Tensor, rank: int, restart: int) -> Adversarial:
            start = ball.sample(batch.images, batch.generators(Draws.PGD, restart))
            return descend(victim, batch, ball, start, self.steps, 2.5 * ball.radius / self.steps)

        return attempts(victim, batch, attempt, restarts=self.restarts)


def descend(victim: Victim, batch: Batch, ball: Ball, start: Tensor, steps: int, size: float) -> Adversarial:
    """Steps of one size towards a higher cross-entropy. An image stops as soon as it is fooled."""
    moved = start.clone()
    rows = torch.arange(len(start), device=start.device)  # those that are not fooled yet
    for _ in range(steps):
        labels = batch.labels[rows]
        slope = victim.slope(moved[rows], cross_entropy, labels, labels)
        right = slope.logits.argmax(1) == labels
        rows, gradient = rows[right], slope.gradient[right]
        if not len(rows):
            break
        moved[rows] = ball.project(moved[rows] + size * ball.steepest(gradient), batch.images[rows])
    return Adversarial(moved, victim.logits(moved).argmax(1) != batch.labels)
