"""Mean corruption error."""

import json
from pathlib import Path

import pytest

from labelflow.robustness.corruption_error import ALEXNET, ALEXNET_CLEAN, corruption_errors, mce, relative_mce
from labelflow.robustness.corruptions import CORRUPTIONS

SHARED = Path(__file__).parents[3] / "shared" / "data" / "alexnet_imagenet_c_err.json"
AS_ALEXNET = {name: [error - 0.02, error - 0.01, error, error + 0.01, error + 0.02] for name, error in ALEXNET.items()}


def test_alexnet_itself_has_100() -> None:
    assert mce(AS_ALEXNET) == pytest.approx(100)
    assert relative_mce(AS_ALEXNET, ALEXNET_CLEAN) == pytest.approx(100)
    assert list(ALEXNET) == list(CORRUPTIONS)


def test_half_of_its_errors_is_50_and_the_sums_are_naive() -> None:
    errors = {name: [error / 2 for error in five] for name, five in AS_ALEXNET.items()}
    assert mce(errors) == pytest.approx(50)
    errors["fog"] = [0.1, 0.2, 0.3, 0.4, 0.5]
    assert corruption_errors(errors)["fog"] == pytest.approx(100 * 1.5 / (5 * 0.819324))
    lost = [(sum(errors[name]) - 5 * 0.25) / (5 * ALEXNET[name] - 5 * 0.4345) for name in ALEXNET]
    assert relative_mce(errors, 0.25) == pytest.approx(100 * sum(lost) / 15)


def test_all_errors_are_needed() -> None:
    with pytest.raises(ValueError, match="all 15 corruptions at 5 severities; incomplete: snow"):
        mce({**AS_ALEXNET, "snow": [0.5]})


def test_the_published_errors() -> None:
    if not SHARED.exists():
        pytest.skip("the research data is not beside the repo")
    assert json.loads(SHARED.read_text())["alexnet_err"] == ALEXNET
