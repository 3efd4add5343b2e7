"""What `labelflow segment` refuses, as a user sees it: one line, exit code 2, and no run left behind."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save_file

from labelflow.cli import main
from labelflow.engine import Run
from labelflow.models.create import create
from labelflow.recipes import find_any
from labelflow.spec import parse

VIT = "vit_tiny_patch16_224(patch_size=8, embed_dim=16, depth=4, num_heads=2)"
TINY = ["--backbone", VIT, "--width", "8", "--crop", "32", "--short", "32", "--workers", "0", "--epochs", "1"]
TINY += ["--warmup-epochs", "0", "--batch", "2", "--micro-batch", "2"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four images to train on and two to evaluate on, of three classes."""
    for split, count in (("train", 4), ("val", 2)):
        for part in ("images", "masks"):
            (tmp_path / "data" / part / split).mkdir(parents=True)
        for number in range(count):
            ids = np.arange(40 * 32).reshape(32, 40) % 3
            Image.fromarray(ids.astype(np.uint8)).save(tmp_path / f"data/masks/{split}/{number}.png")
            Image.new("RGB", (40, 32)).save(tmp_path / f"data/images/{split}/{number}.png")
    (tmp_path / "data/classes.txt").write_text("sky\ntree\nroad\n")
    return tmp_path / "data"


def told_in_a_line(command: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("labelflow: ")
    return line


def _smaller_mask(data: Path) -> None:
    Image.new("L", (20, 16)).save(data / "masks/val/1.png")


def _unknown_ids(data: Path) -> None:
    Image.new("L", (40, 32), 77).save(data / "masks/train/2.png")


REFUSED: list[tuple[Callable[[Path], object], list[str], str]] = [
    (_smaller_mask, [], "1.png has 16×20; make both the same"),
    (_unknown_ids, [], "2.png has the class ids 77, which are not among the 3 classes (ids 0 to 2)"),
    (lambda data: None, ["--classes", "2"], "has the class ids 2, which are not among the 2 classes"),
    (lambda data: (data / "classes.txt").write_text("sky"), [], "2 to 255 classes of different names, not 1"),
    (lambda data: (data / "masks/val/0.png").unlink(), [], "has no masks for 0"),
    (lambda data: None, ["--micro-batch", "1"], "choose a --micro-batch of 2 or more"),
    (lambda data: None, ["--batch", "8", "--micro-batch", "8"], "a batch of 8 is larger than the 4 training samples"),
    (lambda data: None, ["--crop", "0"], "crop, short ≤ long, must be at least 1"),
    (lambda data: None, ["--window", "16", "--stride", "24"], "a stride must not leave gaps"),
    (lambda data: None, ["--backbone", "vit_tiny_patch16_224(depth=2)"], "four levels need at least four blocks"),
]


@pytest.mark.parametrize(("spoil", "extra", "message"), REFUSED, ids=[message for *_, message in REFUSED])
def test_refused(
    spoil: Callable[[Path], object], extra: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(folder)
    out = folder.parent / "run"
    command = ["segment", "segment_small", "--data", str(folder), "--out", str(out), *TINY, *extra]
    assert message in told_in_a_line(command, capsys)
    assert not out.exists()  # the same command, fixed, can begin there


def starting(task: str, folder: Path, *settings: str) -> list[str]:
    """The command that trains a segmenter or a detector with these settings."""
    if task == "segment":
        return ["segment", "segment_small", "--data", str(folder), *TINY, *settings]
    short = ["--data", "world(train=8, val=2, size=64)", "--workers", "0", "--warmup-updates", "0"]
    return ["detect", "detect_quickstart", *short, *settings]


@pytest.mark.parametrize("task", ["segment", "detect"])
@pytest.mark.parametrize(("trained", "recipe"), [("segmenter", "segment_small"), ("detector", "detect_small")])
def test_a_run_of_another_task_is_no_backbone(
    task: str, trained: str, recipe: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = find_any(recipe)
    run, out = tmp_path / trained, tmp_path / "run"
    run.mkdir()
    Run(run).write("config.json", {"task": entry.kind.name, "model": VIT, "label_names": ["a", "b"], "samples": 4})
    Run(run).write("recipe.json", {"task": entry.kind.name, **asdict(entry.recipe)})
    line = told_in_a_line([*starting(task, folder), "--backbone", str(run), "--out", str(out)], capsys)
    assert f"{run} is the run of a segmenter or detector; only a classifier's weights can be used" in line
    assert not out.exists()


@pytest.mark.parametrize("how", ["backbone", "init"])
def test_a_run_that_saw_other_colours_says_which(
    how: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = tmp_path / "vit", tmp_path / "run"
    run.mkdir()
    name, arguments = parse(VIT)
    classifier = find_any("quickstart").recipe.change(model=VIT, mean=(0.5, 0.5, 0.5))
    model = create(name, **arguments, img_size=64)
    save_file(model.state_dict(), run / "model.safetensors")
    Run(run).write("config.json", {"architecture": name, "model_args": {**arguments, "img_size": 64}})
    Run(run).write("recipe.json", {"task": "classify", **asdict(classifier)})
    line = told_in_a_line([*starting("segment", folder), f"--{how}", str(run), "--out", str(out)], capsys)
    assert f"{run} was trained with another mean or std: use --mean 0.5 0.5 0.5 --std 0.229 0.224 0.225" in line
    assert not out.exists()


def test_evaluation_on_other_classes(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And on what the task has no setting for."""
    out = str(tmp_path / "run")
    assert main(["segment", "segment_small", "--data", str(folder), "--out", out, *TINY]) == 0
    capsys.readouterr()
    (folder / "classes.txt").write_text("sky\nroad\ntree\n")
    line = told_in_a_line(["eval", out], capsys)
    assert "has different classes; 'tree' and 'road', 'road' and 'tree' are at the same index" in line
    (folder / "classes.txt").write_text("sky\ntree\nroad\ncar\n")
    assert "has different classes: 4 instead of 3" in told_in_a_line(["eval", out], capsys)
    assert "different classes" in told_in_a_line(
        ["segment", "segment_small", "--data", str(folder), "--out", out, *TINY, "--resume"], capsys
    )
    (folder / "classes.txt").write_text("sky\ntree\nroad\n")
    assert "is the run of a segmenter" in told_in_a_line(["eval", out, "--image-size", "64"], capsys)
