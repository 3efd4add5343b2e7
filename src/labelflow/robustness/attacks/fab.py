"""FAB, with targets: the nearest image that the model gets wrong (Croce & Hein 2020, "Minimally distorted adversarial
examples with a fast adaptive boundary attack").

B batch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from labelflow.robustness.attacks.ball import Ball, wide
from labelflow.robustness.attacks.losses import margin, towards
from labelflow.robustness.attacks.plane import way_to_plane
from labelflow.robustness.attacks.victim import FORWARD, GRADIENT, Adversarial, Batch, Draws, Victim, at_least, attempts

SEARCHES = 3  # steps of the search along the line, at the end


@dataclass(frozen=True)
class TargetedFAB:
    """To the boundary with each of the likeliest wrong classes in turn. Images that end outside the ball stay clean.

    bias: how much the clean image attracts at most (α_max); overshoot: how far steps go beyond the boundary (η);
    back: what remains of the way from the clean image after a success (β). Restarts begin at a random point.
    """

    steps: int = 100
    targets: int = 9
    restarts: int = 1
    bias: float = 0.1
    overshoot: float = 1.05
    back: float = 0.9

    def __post_init__(self) -> None:
        at_least(1, steps=self.steps, targets=self.targets, restarts=self.restarts)

    def passes(self, classes: int) -> int:
        attempts = min(self.targets, classes - 1) * self.restarts
        return FORWARD + attempts * (self.steps * (GRADIENT + FORWARD) + (SEARCHES + 2) * FORWARD)

    def __call__(self, victim: Victim, batch: Batch, ball: Ball) -> Tensor:
        def attempt(batch: Batch, targets: Tensor, rank: int, restart: int) -> Adversarial:
            start = batch.images
            if restart:
                half = Ball(ball.norm, ball.radius / 2)
                start = half.sample(start, batch.generators(Draws.FAB_T, restart, rank))
            return self._approach(victim, batch, ball, targets, start)

        return attempts(victim, batch, attempt, targets=self.targets, restarts=self.restarts)

    def _approach(self, victim: Victim, batch: Batch, ball: Ball, targets: Tensor, start: Tensor) -> Adversarial:
        """Steps to the boundary as it looks from here, and back towards the clean image from behind it.

        An image stops as soon as a point inside the ball fools the model.
        """
        best = batch.images.clone()
        nearest = batch.images.new_full((len(start),), torch.inf)  # how far the best ones are
        point = start.clone()
        rows = torch.arange(len(start), device=start.device)  # whose nearest point is outside the ball
        for _ in range(self.steps):
            clean, labels = batch.images[rows], batch.labels[rows]
            moved = self._step(victim, point[rows], clean, labels, targets[rows], ball)
            fooled = victim.logits(moved).argmax(1) != labels
            distance = ball.distance(moved, clean)
            nearer = fooled & (distance < nearest[rows])
            best[rows[nearer]], nearest[rows[nearer]] = moved[nearer], distance[nearer]
            point[rows] = torch.where(wide(fooled), clean + self.back * (moved - clean), moved)
            rows = rows[nearest[rows] > ball.radius]
            if not len(rows):
                break
        rows = rows[nearest[rows].isfinite()]
        if len(rows):
            best[rows] = search(victim, best[rows], batch.images[rows], batch.labels[rows])
            nearest[rows] = ball.distance(best[rows], batch.images[rows])
        inside = nearest <= ball.radius
        return Adversarial(torch.where(wide(inside), best, batch.images), inside)

    def _step(
        self, victim: Victim, point: Tensor, clean: Tensor, labels: Tensor, targets: Tensor, ball: Ball
    ) -> Tensor:
        """x' = P((1 - α)(x + η δ) + α(x_clean + η δ_clean)), the δ being the ways to the linearised boundary."""
        slope = victim.slope(point, towards, labels, targets)
        normal, back = slope.gradient.flatten(1), (clean - point).flatten(1)
        from_point = way_to_plane(point.flatten(1), normal, slope.value, ball.norm).view_as(point)
        at_clean = slope.value + (normal * back).sum(1)
        from_clean = way_to_plane(clean.flatten(1), normal, at_clean, ball.norm).view_as(clean)
        length, length_clean = ball.length(from_point), ball.length(from_clean)
        share = wide((length / (length + length_clean).clamp(min=1e-12)).clamp(max=self.bias))
        ahead = (1 - share) * (point + self.overshoot * from_point)
        return (ahead + share * (clean + self.overshoot * from_clean)).clamp(0, 1)


def search(victim: Victim, fooling: Tensor, clean: Tensor, labels: Tensor) -> Tensor:
    """Nearer to the clean images: where a margin linear along the line would be zero, a few times."""
    right, right_margin = clean, margin(victim.logits(clean), labels)
    wrong, wrong_margin = fooling, margin(victim.logits(fooling), labels)
    for _ in range(SEARCHES):
        share = wrong_margin / (wrong_margin - right_margin).clamp(min=1e-12)  # of the way back
        between = wrong + wide(share.clamp(0, 1)) * (right - wrong)
        logits = victim.logits(between)
        fooled, value = logits.argmax(1) != labels, margin(logits, labels)
        wrong, wrong_margin = torch.where(wide(fooled), between, wrong), torch.where(fooled, value, wrong_margin)
        right, right_margin = torch.where(wide(fooled), right, between), torch.where(fooled, right_margin, value)
    return wrong
