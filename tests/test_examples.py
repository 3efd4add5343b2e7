"""Examples, benchmarks and documentation, run as a user runs them."""

import difflib
import doctest
import importlib
import json
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import skimage
import torch
from PIL import Image

import labelflow
from labelflow.data.table import Table
from labelflow.recipes import ALL, find
from labelflow.recipes.methods import METHODS
from labelflow.tasks import train_run

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


def test_coco_labels(tmp_path: Path, run_here: Callable[..., str]) -> None:
    """A table of an image's kinds of objects; those that too few training images show are left out."""
    names = {1: "cat", 2: "dog", 7: "zebra"}
    boxes = {"train": [(10, 1), (10, 1), (10, 2), (11, 1)], "val": [(12, 7), (12, 2)]}
    (tmp_path / "annotations").mkdir()
    for split, ids in (("train", (10, 11)), ("val", (12, 13))):
        found = {
            "categories": [{"id": number, "name": name} for number, name in names.items()],
            "images": [{"id": number, "file_name": f"{number}.jpg"} for number in ids],
            "annotations": [
                {"image_id": image, "category_id": kind, "bbox": [0, 0, 1, 1]} for image, kind in boxes[split]
            ],
        }
        (tmp_path / "annotations" / f"instances_{split}2017.json").write_text(json.dumps(found))
    assert "4 images, 2 classes" in run_here("examples/coco_labels.py", tmp_path)
    rows = [
        "train2017/10.jpg,cat;dog,train",
        "train2017/11.jpg,cat,train",
        "val2017/12.jpg,dog,val",
        "val2017/13.jpg,,val",
    ]
    assert (tmp_path / "labels.csv").read_text().split() == ["image,labels,split", *rows]
    train, val = (Table(tmp_path / "labels.csv", split) for split in ("train", "val"))
    assert (train.classes, train.labels.tolist()) == (["cat", "dog"], [[True, True], [True, False]])
    assert val.labels.tolist() == [[False, True], [False, False]]
    assert "1 classes" in run_here("examples/coco_labels.py", tmp_path, "--least", "2")


def test_rivals(tmp_path: Path, run_here: Callable[..., str]) -> None:
    model = "vit_tiny_patch16_224(embed_dim=24, depth=2, num_heads=3)"
    options = ["--model", model, "--batch", "2", "--rounds", "1", "--later", "--out", tmp_path]
    printed = run_here("benchmarks/rivals.py", *options)
    speeds = json.loads((tmp_path / "rivals.json").read_text())
    assert speeds["cutmix"]["ratio"] == 1  # what the others are relative to
    assert len(speeds) == 14
    assert {"puzzlemix", "attentive_cutmix", "saliencymix", "transmix", "tl_align"} <= speeds.keys()
    for name, speed in speeds.items():
        assert re.search(rf"^{name} +{speed['ratio']:.3f} ", printed, re.MULTILINE)


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
    printed = run_here("benchmarks/engine_cost.py", *options)
    speeds = json.loads((tmp_path / "engine_cost.json").read_text())["speed"]
    assert list(speeds) == ["no mixing", "CutMix", "CutMix + TL-Align", "CutMix + TL-Align + EMA", "loader"]
    for name in list(speeds)[:-1]:
        assert re.search(rf"^{re.escape(name)} +{speeds[name]:.3f} ", printed, re.MULTILINE)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="it reads Linux's account of memory")
def test_label_pipeline(tmp_path: Path) -> None:
    photos = Path(skimage.__file__).parent / "data"
    options = ["--images", photos, "--count", "2", "--batch", "8", "--rounds", "1", "--small", "--out", tmp_path]
    assert "prepare, times faster" in run("benchmarks/label_pipeline.py", *options)
    table = json.loads((tmp_path / "label_pipeline.json").read_text())
    assert table["target memory, ratio"] < 0.2
    assert table["store, bytes per image"] < 6600


MODULES = sorted(path for path in Path(labelflow.__file__).parent.rglob("*.py") if ">>> " in path.read_text())


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_docstrings(path: Path) -> None:
    name = ".".join(path.relative_to(Path(labelflow.__file__).parents[1]).with_suffix("").parts)
    results = doctest.testmod(importlib.import_module(name.removesuffix(".__init__")))
    assert results.attempted
    assert not results.failed


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PYTHON = "```python\n"


@pytest.mark.parametrize("page", [page for page in PAGES if PYTHON in page.read_text()], ids=lambda page: page.stem)
def test_documentation(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python blocks of a page, one after another, as one program."""
    monkeypatch.chdir(tmp_path)
    blocks = [block.split("```")[0] for block in page.read_text().split(PYTHON)[1:]]
    if any("runs/quickstart" in block for block in blocks):
        tiny = find("quickstart").recipe.change(
            source="world(train=8, val=8)", batch=8, micro_batch=8, epochs=1, warmup_epochs=0
        )
        train_run(tiny.change(workers=0), Path("runs/quickstart"), resume=False)
    exec(compile("\n".join(blocks), page.name, "exec"), {"__name__": "__main__"})


DIFF = re.compile(r"(\w+) lines? (?:is|are) new, (\w+) (?:go|goes)\b[^`]*```diff\n(.*?)```", re.DOTALL)
NUMBERS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


@pytest.mark.parametrize("page", [page for page in PAGES if "```diff" in page.read_text()], ids=lambda page: page.stem)
def test_changed_lines_are_counted(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A diff has the number of its lines above it, none more than needed; what was and what is both run."""
    monkeypatch.chdir(tmp_path)
    found = DIFF.findall(page.read_text())
    assert len(found) == page.read_text().count("```diff")
    for new, gone, diff in found:
        sides = [[line[1:] for line in diff.splitlines() if not line.startswith(other)] for other in "+-"]
        marks = [line[0] for line in difflib.ndiff(*sides)]
        assert [NUMBERS.index(new.lower()), NUMBERS.index(gone.lower())] == [marks.count("+"), marks.count("-")]
        assert marks.count("+") == len(re.findall(r"^\+", diff, re.MULTILINE))
        for side in sides:
            exec(compile("\n".join(side), page.name, "exec"), {"__name__": "__main__"})


def test_lines_are_counted_nowhere_else() -> None:
    count = re.compile(rf"\b({'|'.join(NUMBERS)}|\d+) lines? (change|is new|are new)", re.IGNORECASE)
    for page in [*PAGES, *(ROOT / "docs" / "notebooks").glob("*.ipynb")]:
        assert not count.search(DIFF.sub("", page.read_text())), page.name


def test_the_page_of_comparisons_has_every_method() -> None:
    page = (ROOT / "docs" / "compare.md").read_text()
    assert all(f"`{name}`" in page for name in METHODS)


def test_the_page_of_recipes_has_them_all() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text()
    for entry in ALL.values():
        numbers = entry.aim if isinstance(entry.aim, float) else entry.reported.replace(" %", "")
        assert f"| `{entry.name}` | {entry.about} | {entry.paper} | {numbers} |" in page


def test_links_and_paths_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for link in page.read_text().split("](")[1:]:
            target = link.split(")")[0].split("#")[0]
            if target and "://" not in target:
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"
