"""How robust models are: natural shifts, corruptions, attacks, occlusion, shuffled patches, calibration."""

from typing import TYPE_CHECKING

from labelflow.lazy import exports

if TYPE_CHECKING:
    from labelflow.robustness.attacks import ATTACKS, Ball, Batch, auto_attack, run_attacks
    from labelflow.robustness.calibration import calibration_error, reliability, risk_area, selective_accuracy
    from labelflow.robustness.corruption_error import mce, relative_mce
    from labelflow.robustness.corruptions import CORRUPTIONS, EXTRA, corrupt
    from labelflow.robustness.datasets import open_dataset
    from labelflow.robustness.evaluator import Evaluator
    from labelflow.robustness.models import FromPixels, evaluation_data, load_models
    from labelflow.robustness.occlusion import PatchDrop
    from labelflow.robustness.settings import Settings
    from labelflow.robustness.shuffle import Shuffle
    from labelflow.robustness.suites import SUITES
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
