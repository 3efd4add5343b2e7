"""The benchmark of data workers, at a size that takes a second."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from labelflow.data import World

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.usefixtures("_own_threads")
def test_loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    world = World("train", 4, 64)
    for index in range(4):
        world.load(index)[0].save(tmp_path / f"{index}.png")
    options = ("--batch", "4", "--rounds", "1", "--out", str(tmp_path / "out"))
    monkeypatch.setattr(sys, "argv", ["loader.py", str(tmp_path), *options])
    runpy.run_path(str(BENCHMARKS / "loader.py"))["main"]()
    table = json.loads((tmp_path / "out/loader.json").read_text())
    assert table["timm"]["ratio"] == 1.0
    assert table["labelflow, labels"]["to"] == "labelflow"
    *rows, large, small = capsys.readouterr().out.splitlines()
    assert [row.split("  ")[0] for row in rows] == list(table)
    assert large.startswith("crops of 224 pixels: 9")
    assert small.startswith("crops of 56 pixels: ")
    assert all(row["ms a view"] > 0 for row in table.values())
