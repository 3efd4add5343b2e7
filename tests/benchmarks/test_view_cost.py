"""The benchmark of workers' views, at a size that takes a second; it checks that both its ways make the same images."""

import json
import runpy
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.usefixtures("_own_threads")
def test_view_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--size", "32", "--batch", "16", "--rounds", "2", "--out", str(tmp_path / "out"))
    monkeypatch.setattr(sys, "argv", ["view_cost.py", *options])
    runpy.run_path(str(BENCHMARKS / "view_cost.py"))["main"]()
    table = json.loads((tmp_path / "out/view_cost.json").read_text())
    assert table["bytes as float32"] == 4 * table["bytes of a view"] == 4 * 3 * 32 * 32
    assert table["bytes of its noise, on average"] > 0
