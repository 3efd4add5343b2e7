"""The benchmarks of segmenters and detectors, at sizes that take seconds; in this process, as imports take longer."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from labelflow.tasks.detect import cascade

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TINY = "swin_tiny_patch4_window7_224(embed_dim=8, depths=(1, 1, 1, 1), num_heads=(1, 1, 2, 2), window_size=1)"


def load(name: str) -> dict[str, Any]:
    return runpy.run_path(str(BENCHMARKS / name))


def test_sizes_are_those_of_the_papers_or_explained(capsys: pytest.CaptureFixture[str]) -> None:
    load("dense_sizes.py")["main"](["--recipes", "upernet_deit_small", "cascade_swin_tiny"])
    printed = capsys.readouterr().out
    for line in (
        "| upernet_deit_small | 58.00 | 58 | -0.0 % | 1215.7 | 1032 | +17.8 % | 1032.0 without attention, which",
        "| cascade_swin_tiny | 85.63 | 86 | -0.4 % | 744.8 | 745 | -0.0 % |  |",
    ):
        assert line in printed


@pytest.mark.usefixtures("_own_threads")
def test_speeds_beside_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("segmentation_models_pytorch")
    monkeypatch.setattr(cascade, "MAX_DETECTIONS", 2)  # masks take most of the time
    options = ["--rounds", "1", "--size", "32", "--boxes", "1", "--width", "16", "--backbone", TINY]
    load("dense_speed.py")["main"]([*options, "--out", str(tmp_path)])
    table = json.loads((tmp_path / "dense_speed.json").read_text())
    models = table["segmenters"]["models"]
    ours, other = models["ours: UperNet"], models["segmentation-models-pytorch: UPerNet"]
    assert ours["parameters"] == pytest.approx(other["parameters"], rel=1e-3)  # the same layers
    assert ours["multiply_adds"] == pytest.approx(other["multiply_adds"], rel=1e-3)
    models = table["detectors"]["models"]
    ours, other = models["ours: its first stage alone"], models["torchvision: Mask R-CNN on our pyramid"]
    assert ours["parameters"] == pytest.approx(other["parameters"], rel=1e-3)
    for group in table.values():
        assert all(speed > 0 for ratios in group["speed"].values() for speed in (*ratios["step"], *ratios["inference"]))
    assert [len(group["speed"]) for group in table.values()] == [4, 4]


def test_ratios_are_paired() -> None:
    assert load("dense_speed.py")["speed"]([1.0, 2.0, 4.0], [2.0, 2.0, 2.0]) == [0.75, 1, 1.5]


def test_a_package_that_is_not_there_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "segmentation_models_pytorch", None)
    assert load("dense_speed.py")["other_upernet"](64, TINY, 16) is None
    assert "pip install segmentation-models-pytorch" in capsys.readouterr().out
