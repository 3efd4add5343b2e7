"""Examples, benchmarks and documentation, run as a user runs them."""

import doctest
import importlib
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import labelflow

ROOT = Path(__file__).parent.parent


def run(*arguments: str | Path) -> str:
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_align_timm(tmp_path: Path) -> None:
    printed = run("examples/align_timm.py", "--out", tmp_path / "picture.png")
    assert "what reaches the classifier" in printed
    assert "after blocks.11" in printed
    with Image.open(tmp_path / "picture.png") as picture:
        assert min(picture.size) > 500
        assert len(picture.convert("RGB").getcolors(2**24) or []) > 1000  # something is drawn


def test_step_overhead(tmp_path: Path) -> None:
    name = "deit_tiny_patch16_224"
    printed = run("benchmarks/step_overhead.py", "--models", name, "--batch", "1", "--rounds", "2", "--out", tmp_path)
    assert "naive dense" in printed
    results = json.loads((tmp_path / "step_overhead.json").read_text())["results"][name]
    assert results["aligned"]["labels"] > 0
    assert results["aligned"]["memory"] < results["naive dense"]["memory"]
    assert (tmp_path / "step_overhead.png").exists()


def test_model_costs() -> None:
    """Facts that were computed by hand before."""
    printed = run("benchmarks/model_costs.py")
    for line in (
        "5.72     5.7        1.25     1.6  <- the table is off",
        "24.49    24.5        3.8",
        "87.77      88       15.4",
    ):
        assert line in printed


MODULES = [module.name for module in pkgutil.walk_packages(labelflow.__path__, "labelflow.")]


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_documentation(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python blocks of a page, one after another, as one program."""
    monkeypatch.chdir(tmp_path)
    blocks = [block.split("```")[0] for block in page.read_text().split("```python\n")[1:]]
    exec(compile("\n".join(blocks), page.name, "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links_and_paths_lead_somewhere(page: Path) -> None:
    for link in page.read_text().split("](")[1:]:
        target = link.split(")")[0].split("#")[0]
        if target and "://" not in target:
            assert (page.parent / target).exists(), target
