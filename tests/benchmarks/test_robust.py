"""The benchmark of `labelflow robust` against a bare loop, at a size that takes a second; in this process."""

import runpy
import sys
from pathlib import Path

import pytest
import timm
from safetensors.torch import save_file

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.usefixtures("_own_threads")
def test_robust_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    weights = tmp_path / "weights.safetensors"
    save_file(timm.create_model("test_vit").state_dict(), weights)
    options = ("--model", "test_vit", "--weights", str(weights), "--images", "4", "--rounds", "2", "--workers", "0")
    monkeypatch.setattr(sys, "argv", ["robust_speed.py", *options])
    runpy.run_path(str(BENCHMARKS / "robust_speed.py"))["main"]()
    assert "labelflow robust" in capsys.readouterr().out
