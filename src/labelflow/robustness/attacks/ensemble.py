"""Several attacks in turn, each on the images that survive so far: AutoAttack (Croce & Hein 2020), or any list.

B batch, C classes.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from labelflow.robustness.attacks.apgd import APGD, TargetedAPGD
from labelflow.robustness.attacks.ball import Ball
from labelflow.robustness.attacks.fab import TargetedFAB
from labelflow.robustness.attacks.square import Square
from labelflow.robustness.attacks.victim import FORWARD, Attack, Batch, Victim, evaluating

SURVIVES, WRONG_BEFORE = -1, 0


class Plan(NamedTuple):
    """Attacks by name, in order, and what a reader should know about them."""

    attacks: list[tuple[str, Attack]]
    notes: list[str]


class Outcome(NamedTuple):
    """fallen (B,): -1 survives all, 0 is wrong before any attack, i falls to the i-th first.

    images: those that the model gets wrong; clean where an image survives or is wrong before.
    """

    fallen: Tensor
    images: Tensor


def auto_attack(classes: int) -> Plan:
    """AutoAttack's standard list, as far as this number of classes allows.

    >>> [name for name, _ in auto_attack(1000).attacks], auto_attack(1000).notes
    (['apgd_ce', 'apgd_t', 'fab_t', 'square'], [])
    """
    if classes < 2:
        raise ValueError(f"attacks need at least two classes, not {classes}")
    attacks: list[tuple[str, Attack]] = [
        *(("apgd_ce", APGD("ce")), ("apgd_t", TargetedAPGD())),
        *(("fab_t", TargetedFAB()), ("square", Square())),
    ]
    notes = []
    if classes < 10:
        wrong = "one wrong class" if classes == 2 else f"{classes - 1} wrong classes"
        notes.append(f"{classes} classes: {wrong} to aim at, where the standard has 9")
    if classes == 3:
        notes.append("3 classes: apgd_t uses a targeted cross-entropy, as the targeted DLR loss needs 4 classes")
    if classes == 2:
        del attacks[1]
        notes.append("2 classes: without apgd_t, as the targeted DLR loss needs 4 classes")
    return Plan(attacks, notes)


def run_attacks(
    model: Callable[[Tensor], Tensor],
    attacks: Sequence[tuple[str, Attack]],
    batch: Batch,
    ball: Ball,
    tick: Callable[[int], None] = lambda passes: None,
    spare: Callable[[int], None] = lambda passes: None,
) -> Outcome:
    """Which attack each image falls to first. The model maps images in [0, 1] to logits, and runs in eval mode.

    An image has fallen if the model is wrong on the moved image, in a forward pass of its own after the attack.
    tick: called with the number of forward passes of an image, in total at most `most_passes` for each. spare: with the
    number that fallen images save, as soon as that is known; both together make `most_passes`.

    >>> model = lambda images: torch.stack([images.mean((1, 2, 3)), 1 - images.mean((1, 2, 3))], 1)
    >>> grey = Batch(torch.full((2, 3, 8, 8), 0.55), torch.tensor([0, 1]), keys=[0, 1])
    >>> run_attacks(model, auto_attack(classes=2).attacks, grey, Ball("linf", 0.1)).fallen
    tensor([1, 0])
    """
    check(batch)
    with evaluating(model):
        victim = Victim(model, tick)
        logits = victim.logits(batch.images)
        classes = logits.shape[1]
        if not ((batch.labels >= 0) & (batch.labels < classes)).all():
            raise ValueError(f"labels must be from 0 to {classes - 1} for this model, not {batch.labels.tolist()}")
        fallen = torch.where(logits.argmax(1) == batch.labels, SURVIVES, WRONG_BEFORE)
        images = batch.images.clone()
        planned = len(fallen) * most_passes(attacks, classes)
        for number, (_, attack) in enumerate(attacks, 1):
            rows = (fallen == SURVIVES).nonzero()[:, 0]
            left = len(rows) * (most_passes(attacks[number - 1 :], classes) - FORWARD)
            spare(planned - victim.passes - left)
            planned = victim.passes + left
            if len(rows):
                moved = attack(victim, batch.at(rows), ball)
                wrong = victim.logits(moved).argmax(1) != batch.labels[rows]
                fallen[rows[wrong]], images[rows[wrong]] = number, moved[wrong]
        spare(planned - victim.passes)
    return Outcome(fallen, images)


def most_passes(attacks: Sequence[tuple[str, Attack]], classes: int) -> int:
    """Forward passes of an image that survives all of them."""
    return FORWARD + sum(attack.passes(classes) + FORWARD for _, attack in attacks)


def check(batch: Batch) -> None:
    """A ValueError if these are not images in [0, 1] with a label and a key each."""
    images, labels, keys, _ = batch
    if images.ndim != 4 or not images.is_floating_point():
        raise ValueError(
            f"images must be floats (B, channels, height, width); got {images.dtype} {tuple(images.shape)}"
        )
    if not ((images >= 0) & (images <= 1)).all():
        raise ValueError("images must be in [0, 1]; the attacked model should normalise them itself")
    if labels.shape != images.shape[:1] or len(keys) != len(images):
        raise ValueError(f"{len(images)} images need as many labels and keys, not {len(labels)} and {len(keys)}")
