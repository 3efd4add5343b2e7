"""`labelflow robust`: the robustness of models, side by side."""

import json
import sys
from typing import TYPE_CHECKING, Annotated

from tyro.conf import OmitArgPrefixes, arg

from labelflow.robustness.run import Robust, prepare

if TYPE_CHECKING:
    from labelflow.robustness.run import Robustness


def robust(options: Annotated[Robust, OmitArgPrefixes, arg(name="")], as_json: bool = False) -> None:
    """Evaluate models side by side: natural shifts, corruptions, attacks, occlusion, shuffling, calibration.

    Args:
        options: The models, the images and the suites.
        as_json: Print JSON instead of a table.
    """
    found = prepare(options, quiet=as_json)
    if not as_json:
        costs = ", ".join(f"{name} {suite.passes:,}" for name, suite in found.suites.items())
        print(f"forward passes, at most: {costs}. Predictions are cached in {found.evaluator.folder}")
    try:
        found.measure()
    except KeyboardInterrupt:
        page = f"; {found.page} has {', '.join(section.name for section in found.sections)}" if found.sections else ""
        print(f"labelflow: interrupted{page}. Run the same command again to resume", file=sys.stderr)
        raise SystemExit(130) from None
    if as_json:
        print(json.dumps(found.as_json()))
    else:
        _print(found)


def _print(found: "Robustness") -> None:
    from labelflow.robustness.results import print_table

    evaluator = found.evaluator
    print_table(evaluator.models, found.sections)
    attacks = f", {evaluator.attack_passes:,} forward passes of attacks" if evaluator.attack_passes else ""
    cached = f", {evaluator.cached:,} from the cache" if evaluator.cached else ""
    print(f"\n{evaluator.evaluated:,} images evaluated{attacks}{cached}")
    print(f"  look at it     {found.page}")
