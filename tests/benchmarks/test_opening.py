"""The benchmark of opening folders, at a size that takes seconds."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_both_ways_open_the_same_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABELFLOW_CACHE", str(tmp_path / "cache"))
    opening = runpy.run_path(str(BENCHMARKS / "opening.py"))
    opening["make_files"](tmp_path / "files", 45, 7)
    sources = [opening["WAYS"][name](tmp_path / "files") for name in ("list of tuples", "index")]
    one, other = ([(way.name(at), way.key(at), way.label(at)) for at in range(45)] for way in sources)
    assert one == other


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_opening(tmp_path: Path) -> None:
    """With its own processes, which import the script."""
    options = ["--files", "600", "--classes", "3", "--workers", "1", "--rounds", "1", "--epochs", "1"]
    where = ["--folder", str(tmp_path / "made"), "--out", str(tmp_path / "out")]
    command = [sys.executable, str(BENCHMARKS / "opening.py"), *options, *where]
    subprocess.run(command, check=True, capture_output=True)
    found = json.loads((tmp_path / "out" / "opening.json").read_text())
    assert found["seconds"].keys() >= {"list of tuples, each time", "index, first time", "index, again"}
    assert found["MB"].keys() == {f"{way}, {how}" for way in ("list of tuples", "index") for how in ("fork", "spawn")}
    assert not (tmp_path / "made").exists()
