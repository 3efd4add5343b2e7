"""Attacks: the small changes to an image that fool a model most. One attack, one file, one line here."""

from collections.abc import Callable
from functools import partial

from labelflow.robust.attacks.apgd import APGD, TargetedAPGD
from labelflow.robust.attacks.ball import NORMS, Ball
from labelflow.robust.attacks.ensemble import Outcome, Plan, auto_attack, run_attacks
from labelflow.robust.attacks.fab import TargetedFAB
from labelflow.robust.attacks.gradient import FGSM, PGD
from labelflow.robust.attacks.square import Square
from labelflow.robust.attacks.victim import Attack, Batch, Victim

ATTACKS: dict[str, Callable[..., Attack]] = {
    "fgsm": FGSM,
    "pgd": PGD,
    "apgd_ce": partial(APGD, loss="ce"),
    "apgd_dlr": partial(APGD, loss="dlr"),
    "apgd_t": TargetedAPGD,
    "fab_t": TargetedFAB,
    "square": Square,
}

__all__ = [
    "ATTACKS",
    "NORMS",
    "Attack",
    "Ball",
    "Batch",
    "Outcome",
    "Plan",
    "Victim",
    "auto_attack",
    "run_attacks",
]
