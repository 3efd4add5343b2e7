"""Examples, benchmarks and documentation, run as a user runs them."""

import doctest
import importlib
import json
import pkgutil
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import skimage
import torch
from PIL import Image

import labelflow
from labelflow.arguments import parse_arguments
from labelflow.commands.compare import Compare
from labelflow.commands.robust import robust
from labelflow.commands.train import Train
from labelflow.recipes import ALL, find, find_any
from labelflow.recipes.methods import METHODS, find_method
from labelflow.tasks import train_run
from labelflow.tasks.recipe import KINDS

ROOT = Path(__file__).parent.parent


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., str]]:
    """A program in this process, as imports take longer than most of them."""

    def run(program: str, *arguments: str | Path) -> str:
        monkeypatch.chdir(ROOT)
        monkeypatch.setattr(sys, "argv", [program, *map(str, arguments)])
        monkeypatch.syspath_prepend(str((ROOT / program).parent))
        runpy.run_path(program, run_name="__main__")
        return capsys.readouterr().out

    threads = torch.get_num_threads()
    yield run
    torch.set_num_threads(threads)


def run(*arguments: str | Path) -> str:
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_align_timm(tmp_path: Path, run_here: Callable[..., str]) -> None:
    printed = run_here("examples/align_timm.py", "--out", tmp_path / "picture.png")
    assert "what reaches the classifier" in printed
    assert "after blocks.11" in printed
    with Image.open(tmp_path / "picture.png") as picture:
        assert min(picture.size) > 500
        assert len(picture.convert("RGB").getcolors(2**24) or []) > 1000  # something is drawn


def test_rivals(tmp_path: Path, run_here: Callable[..., str]) -> None:
    model = "vit_tiny_patch16_224(embed_dim=24, depth=2, num_heads=3)"
    options = ["--model", model, "--batch", "2", "--rounds", "1", "--later", "--out", tmp_path]
    assert "puzzlemix" in run_here("benchmarks/rivals.py", *options)
    speeds = json.loads((tmp_path / "rivals.json").read_text())
    assert speeds["cutmix"]["ratio"] == 1
    assert speeds["attentive_cutmix"]["ratio"] < 0.9  # a ResNet-50 beside so small a model
    assert len(speeds) == 9


def test_step_overhead(tmp_path: Path) -> None:
    name = "deit_tiny_patch16_224"
    printed = run("benchmarks/step_overhead.py", "--models", name, "--batch", "1", "--rounds", "2", "--out", tmp_path)
    assert "naive dense" in printed
    results = json.loads((tmp_path / "step_overhead.json").read_text())["results"][name]
    assert results["aligned"]["labels"] > 0
    assert results["aligned"]["memory"] < results["naive dense"]["memory"]
    assert (tmp_path / "step_overhead.png").exists()


def test_model_costs(run_here: Callable[..., str]) -> None:
    """Facts that were computed by hand before."""
    printed = run_here("benchmarks/model_costs.py")
    for line in (
        "5.72     5.7        1.25     1.6  <- the table is off",
        "24.49    24.5        3.8",
        "87.77      88       15.4",
    ):
        assert line in printed


def test_engine_cost(tmp_path: Path, run_here: Callable[..., str]) -> None:
    options = ["--rounds", "1", "--updates", "5", "--batch", "4", "--out", tmp_path]
    assert "CutMix + TL-Align" in run_here("benchmarks/engine_cost.py", *options)
    assert json.loads((tmp_path / "engine_cost.json").read_text())["speed"]["CutMix"] > 0


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="it reads Linux's account of memory")
def test_label_pipeline(tmp_path: Path) -> None:
    photos = Path(skimage.__file__).parent / "data"
    options = ["--images", photos, "--count", "4", "--batch", "8", "--rounds", "1", "--small", "--out", tmp_path]
    assert "prepare, times faster" in run("benchmarks/label_pipeline.py", *options)
    table = json.loads((tmp_path / "label_pipeline.json").read_text())
    assert table["target memory, ratio"] < 0.2
    assert table["store, bytes per image"] < 6600


MODULES = [module.name for module in pkgutil.walk_packages(labelflow.__path__, "labelflow.")]


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_documentation(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python blocks of a page, one after another, as one program."""
    monkeypatch.chdir(tmp_path)
    if "runs/quickstart" in page.read_text():
        tiny = find("quickstart").recipe.change(
            source="world(train=8, val=8)", batch=8, micro_batch=8, epochs=1, warmup_epochs=0
        )
        train_run(tiny.change(workers=0), Path("runs/quickstart"), resume=False)
    blocks = [block.split("```")[0] for block in page.read_text().split("```python\n")[1:]]
    exec(compile("\n".join(blocks), page.name, "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_name_recipes_and_settings_that_there_are(page: Path) -> None:
    for line in page.read_text().replace("\\\n", " ").splitlines():
        for kind in KINDS.values():
            command = f"labelflow {kind.command} "
            if command in line and not line.lstrip().startswith(("|", "`", "-")) and "`" not in line:
                name, *settings = shlex.split(line.split(command)[1], comments=True)
                if name != "RECIPE":
                    default = Train(find_any(name, kind.name).recipe, Path("runs"))
                    parse_arguments(Train[kind.recipe], settings, "", default=default)
        if "labelflow compare " in line and not line.lstrip().startswith(("|", "`", "-")) and "`" not in line:
            name, *settings = shlex.split(line.split("labelflow compare ")[1], comments=True)
            options = parse_arguments(Compare, settings, "", default=Compare((), find(name).recipe, Path("compare")))
            assert all(map(find_method, options.methods))
        if "labelflow robust " in line and not line.lstrip().startswith(("|", "`", "-")) and "`" not in line:
            parse_arguments(robust, shlex.split(line.split("labelflow robust ")[1], comments=True), "")


def test_the_page_of_comparisons_has_every_method() -> None:
    page = (ROOT / "docs" / "compare.md").read_text()
    assert all(f"`{name}`" in page for name in METHODS)


def test_the_page_of_recipes_has_them_all() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text()
    for entry in ALL.values():
        assert f"| `{entry.name}` | {entry.about} | {entry.paper} | {entry.aim or ''} |" in page


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_and_paths_lead_somewhere(page: Path) -> None:
    for link in page.read_text().split("](")[1:]:
        target = link.split(")")[0].split("#")[0]
        if target and "://" not in target:
            assert (page.parent / target).exists(), target
