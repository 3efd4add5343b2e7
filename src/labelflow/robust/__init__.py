"""How robust a model is: natural shifts, corruptions, attacks, what is hidden, and how well it knows what it knows."""

from typing import TYPE_CHECKING

from labelflow.lazy import exports

if TYPE_CHECKING:
    from labelflow.robust.attacks import ATTACKS, Ball, Batch, auto_attack, run_attacks
    from labelflow.robust.calibration import calibration_error, reliability, risk_area, selective_accuracy
    from labelflow.robust.corruption_error import mce, relative_mce
    from labelflow.robust.corruptions import CORRUPTIONS, EXTRA, corrupt
    from labelflow.robust.hidden import PatchDrop, Shuffle
    from labelflow.robust.models import FromPixels, from_pixels, load_models, own_data
    from labelflow.robust.session import Session
    from labelflow.robust.sets import open_own
    from labelflow.robust.settings import Settings
    from labelflow.robust.suites import SUITES
else:
    __getattr__, __dir__ = exports(__name__)

__all__ = [
    "ATTACKS",
    "CORRUPTIONS",
    "EXTRA",
    "SUITES",
    "Ball",
    "Batch",
    "FromPixels",
    "PatchDrop",
    "Session",
    "Settings",
    "Shuffle",
    "auto_attack",
    "calibration_error",
    "corrupt",
    "from_pixels",
    "load_models",
    "mce",
    "open_own",
    "own_data",
    "relative_mce",
    "reliability",
    "risk_area",
    "run_attacks",
    "selective_accuracy",
]
