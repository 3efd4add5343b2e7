"""Auto-PGD (Croce & Hein 2020, "Reliable evaluation of adversarial robustness", Algorithm 1), with and without targets.

Gradient steps with momentum, whose size is halved whenever they stop to pay. B batch.
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from labelflow.robustness.attacks.ball import Ball, wide
from labelflow.robustness.attacks.losses import Objective, cross_entropy, cross_entropy_targeted, dlr, dlr_targeted
from labelflow.robustness.attacks.victim import FORWARD, GRADIENT, Adversarial, Batch, Draws, Victim, at_least, attempts
from labelflow.spec import known

LOSSES: dict[str, Objective] = {"ce": cross_entropy, "dlr": dlr}
MOMENTUM = 0.75  # α: the weight of the new step, beside that of the last one
ENOUGH = 0.75  # ρ: the part of steps that have to rise


@dataclass(frozen=True)
class APGD:
    """Towards any wrong class, by the cross-entropy (`ce`) or the difference of logits ratio (`dlr`)."""

    loss: str = "ce"
    steps: int = 100
    restarts: int = 1

    def __post_init__(self) -> None:
        known(self.loss, LOSSES, "loss of APGD")
        at_least(1, steps=self.steps, restarts=self.restarts)

    def passes(self, classes: int) -> int:
        if self.loss == "dlr" and classes < 3:
            raise ValueError(f"the DLR loss needs at least 3 classes, not {classes}; use apgd_ce")
        return FORWARD + self.restarts * (self.steps + 1) * GRADIENT

    def __call__(self, victim: Victim, batch: Batch, ball: Ball) -> Tensor:
        def attempt(batch: Batch, targets: Tensor, rank: int, restart: int) -> Adversarial:
            start = ball.sample(batch.images, batch.generators(Draws.APGD, restart))
            return ascend(victim, batch, ball, LOSSES[self.loss], targets, start, self.steps)

        return attempts(victim, batch, attempt, restarts=self.restarts)


@dataclass(frozen=True)
class TargetedAPGD:
    """Towards each of the likeliest wrong classes in turn, by the targeted DLR; by log p_t below four classes."""

    steps: int = 100
    targets: int = 9
    restarts: int = 1

    def __post_init__(self) -> None:
        at_least(1, steps=self.steps, targets=self.targets, restarts=self.restarts)

    def passes(self, classes: int) -> int:
        return FORWARD + min(self.targets, classes - 1) * self.restarts * (self.steps + 1) * GRADIENT

    def __call__(self, victim: Victim, batch: Batch, ball: Ball) -> Tensor:
        def attempt(batch: Batch, targets: Tensor, rank: int, restart: int) -> Adversarial:
            start = ball.sample(batch.images, batch.generators(Draws.APGD_T, restart, rank))
            return ascend(victim, batch, ball, by_classes, targets, start, self.steps)

        return attempts(victim, batch, attempt, targets=self.targets, restarts=self.restarts)


def by_classes(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """The targeted loss that this number of classes allows."""
    return (dlr_targeted if logits.shape[1] > 3 else cross_entropy_targeted)(logits, labels, targets)


def checkpoints(steps: int) -> list[int]:
    """After how many steps the step size is looked at: 22 % of all, then in shorter and shorter intervals.

    >>> checkpoints(100)
    [22, 41, 57, 70, 80, 87, 93, 99]
    """
    percents, gap = [22], 22
    while percents[-1] + (gap := max(gap - 3, 6)) <= 100:
        percents.append(percents[-1] + gap)
    return sorted({-(-percent * steps // 100) for percent in percents})


def halve(rises: Tensor, period: int, halved: Tensor, best: Tensor, best_before: Tensor) -> Tensor:
    """(B,) bool: whether a step size is halved at a checkpoint, `period` steps after the last one.

    So it is if too few steps rose (1), or if the last checkpoint kept it and nothing better was found since (2).
    """
    return (rises <= ENOUGH * period) | (~halved & (best <= best_before))


@dataclass
class Climb:
    """Where each image is on its way. All fields begin with B."""

    rows: Tensor  # the image's place in the batch
    clean: Tensor
    labels: Tensor
    targets: Tensor
    point: Tensor
    previous: Tensor
    gradient: Tensor
    value: Tensor
    size: Tensor  # of the next step
    best_point: Tensor
    best_gradient: Tensor
    best: Tensor
    best_before: Tensor  # at the last checkpoint
    halved: Tensor  # at the last checkpoint
    rises: Tensor  # since the last checkpoint

    def keep(self, chosen: Tensor) -> "Climb":
        """Of some images only (B,) bool."""
        return Climb(**{field.name: getattr(self, field.name)[chosen] for field in fields(self)})


def ascend(
    victim: Victim, batch: Batch, ball: Ball, objective: Objective, targets: Tensor, start: Tensor, steps: int
) -> Adversarial:
    """Algorithm 1. An image stops as soon as it is fooled."""
    slope = victim.slope(start, objective, batch.labels, targets)
    none = torch.zeros_like(batch.labels)
    climb = Climb(
        rows=torch.arange(len(start), device=start.device),
        clean=batch.images,
        labels=batch.labels,
        targets=targets,
        point=start,
        previous=start,
        gradient=slope.gradient,
        value=slope.value,
        size=torch.full_like(slope.value, 2 * ball.radius),
        best_point=start,
        best_gradient=slope.gradient,
        best=slope.value,
        best_before=slope.value,
        halved=none.bool(),
        rises=none,
    )
    moved, fooled = start.clone(), none.bool()
    checked, checks = 0, checkpoints(steps)
    for done in range(steps + 1):
        wrong = slope.logits.argmax(1) != climb.labels
        moved[climb.rows[wrong]], fooled[climb.rows[wrong]] = climb.point[wrong], True
        if wrong.any():
            climb = climb.keep(~wrong)
        if done == steps or not len(climb.rows):
            break
        if done in checks:
            check(climb, done - checked)
            checked = done
        move(climb, ball, momentum=done > 0)
        slope = victim.slope(climb.point, objective, climb.labels, climb.targets)
        note(climb, slope.value, slope.gradient)
    moved[climb.rows] = climb.best_point
    return Adversarial(moved, fooled)


def move(climb: Climb, ball: Ball, momentum: bool) -> None:
    """x' = P(x + α(P(x + η g) - x) + (1 - α)(x - x_previous)); the first step has no momentum."""
    point = climb.point
    ahead = ball.project(point + wide(climb.size) * ball.steepest(climb.gradient), climb.clean)
    if momentum:
        ahead = point + MOMENTUM * (ahead - point) + (1 - MOMENTUM) * (point - climb.previous)
        ahead = ball.project(ahead, climb.clean)
    climb.previous, climb.point = point, ahead


def note(climb: Climb, value: Tensor, gradient: Tensor) -> None:
    """What the objective is at the new point."""
    climb.rises = climb.rises + (value > climb.value)
    better = value > climb.best
    climb.value, climb.gradient = value, gradient
    climb.best = torch.where(better, value, climb.best)
    climb.best_point = torch.where(wide(better), climb.point, climb.best_point)
    climb.best_gradient = torch.where(wide(better), gradient, climb.best_gradient)


def check(climb: Climb, period: int) -> None:
    """A checkpoint: images whose step size is halved go on from their best point."""
    halved = halve(climb.rises, period, climb.halved, climb.best, climb.best_before)
    climb.size = torch.where(halved, climb.size / 2, climb.size)
    climb.point = torch.where(wide(halved), climb.best_point, climb.point)
    climb.gradient = torch.where(wide(halved), climb.best_gradient, climb.gradient)
    climb.value = torch.where(halved, climb.best, climb.value)
    climb.halved, climb.best_before, climb.rises = halved, climb.best, torch.zeros_like(climb.rises)
