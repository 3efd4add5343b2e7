"""The benchmark of shards, at a size that takes a second; it checks that all ways show the same images."""

import json
import runpy
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.usefixtures("_own_threads")
def test_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABELFLOW_CACHE", "")  # restored afterwards
    options = ("--count", "260", "--size", "32", "--batch", "8", "--rounds", "2", "--out", str(tmp_path / "out"))
    monkeypatch.setattr(sys, "argv", ["shards.py", *options])
    runpy.run_path(str(BENCHMARKS / "shards.py"))["main"]()
    table = json.loads((tmp_path / "out/shards.json").read_text())
    assert table["folder, cost, ratio"] == 1
    assert all(value > 0 for value in table.values())
