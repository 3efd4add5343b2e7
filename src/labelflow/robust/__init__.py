"""How robust models are: natural shifts, corruptions, attacks, occlusion, shuffled patches, calibration."""

from typing import TYPE_CHECKING

from labelflow.lazy import exports

if TYPE_CHECKING:
    from labelflow.robust.attacks import ATTACKS, Ball, Batch, auto_attack, run_attacks
    from labelflow.robust.calibration import calibration_error, reliability, risk_area, selective_accuracy
    from labelflow.robust.corruption_error import mce, relative_mce
    from labelflow.robust.corruptions import CORRUPTIONS, EXTRA, corrupt
    from labelflow.robust.datasets import open_dataset
    from labelflow.robust.evaluator import Evaluator
    from labelflow.robust.models import FromPixels, evaluation_data, load_models
    from labelflow.robust.occlusion import PatchDrop
    from labelflow.robust.settings import Settings
    from labelflow.robust.shuffle import Shuffle
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
    "Evaluator",
    "FromPixels",
    "PatchDrop",
    "Settings",
    "Shuffle",
    "auto_attack",
    "calibration_error",
    "corrupt",
    "evaluation_data",
    "load_models",
    "mce",
    "open_dataset",
    "relative_mce",
    "reliability",
    "risk_area",
    "run_attacks",
    "selective_accuracy",
]
