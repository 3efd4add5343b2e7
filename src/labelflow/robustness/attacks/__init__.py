"""Attacks: the small changes to an image that fool a model most. One attack, one file, one line here."""

from collections.abc import Callable
from functools import partial

from labelflow.robustness.attacks.apgd import APGD, TargetedAPGD
from labelflow.robustness.attacks.ball import NORMS, Ball
from labelflow.robustness.attacks.ensemble import Outcome, Plan, auto_attack, run_attacks
from labelflow.robustness.attacks.fab import TargetedFAB
from labelflow.robustness.attacks.gradient import FGSM, PGD
from labelflow.robustness.attacks.square import Square
from labelflow.robustness.attacks.victim import Attack, Batch, Victim

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
