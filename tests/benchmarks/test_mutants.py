"""Every mutant of benchmarks/mutants.toml can be made: its old text is there exactly once, and its test exists."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_mutant_can_be_made() -> None:
    module = runpy.run_path(str(ROOT / "benchmarks" / "mutants.py"))
    mutants = module["mutants"]()
    assert len(mutants) >= 45
    for mutant in mutants:
        assert mutant.source(ROOT / "src" / "labelflow") != (ROOT / "src" / "labelflow" / mutant.file).read_text()
        assert all((ROOT / test).exists() for test in mutant.test.split())
