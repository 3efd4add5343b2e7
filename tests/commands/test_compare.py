"""`labelflow compare`, as a user runs it."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from labelflow.arguments import parse_arguments
from labelflow.cli import main
from labelflow.comparison import Cell, Compare, make_cells
from labelflow.recipes import find
from labelflow.recipes.methods import find_method

SETTINGS = ["--model", "vit_tiny_patch16_224(patch_size=8, embed_dim=24, depth=2, num_heads=3)", "--image-size", "32"]
SETTINGS += ["--data", "world(train=64, val=16)", "--batch", "16", "--micro-batch", "8", "--workers", "0"]
SETTINGS += ["--epochs", "2", "--warmup-epochs", "1", "--speed-rounds", "1"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def command(out: Path, *more: str) -> list[str]:
    compare = ["compare", "quickstart", "cutmix", "tl_align", "--out", str(out), *SETTINGS, *more]
    return [sys.executable, "-m", "labelflow", *compare]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods and two seeds, two cells at once; stopped in the middle, and gone on with."""
    out = tmp_path_factory.mktemp("compare")
    begun = subprocess.Popen(command(out, "--seeds", "0", "1", "--jobs", "2", "--epochs", "60"), env=ENVIRONMENT)
    wait_for(lambda: len(trained(out)) == 2, begun)
    begun.send_signal(signal.SIGTERM)
    assert begun.wait(120) == 130
    wait_for(lambda: len({path.parent for path in out.glob("runs/*/checkpoints/0*")}) == 2)  # both were told, and saved
    assert not list(out.glob("cells/*"))
    with redirect_stdout(io.StringIO()) as said:
        assert main(command(out, "--seeds", "0", "1", "--jobs", "2")[3:]) == 0
    assert "tl_align, seed 1:" in said.getvalue()
    return out


def trained(out: Path) -> list[Path]:
    """The runs that have made an update, and so are stopped with a checkpoint: a file without a line comes before."""
    return [path.parent for path in out.glob("runs/*/metrics.jsonl") if path.stat().st_size]


def wait_for(what: object, process: "subprocess.Popen[bytes] | None" = None) -> None:
    for _ in range(1200):
        if what():  # type: ignore[operator]
            return
        assert process is None or process.poll() is None
        time.sleep(0.1)
    raise AssertionError("it did not happen")


def test_it_leaves_cells_and_pages(finished: Path) -> None:
    cells = [json.loads(path.read_text()) for path in sorted(finished.glob("cells/*.json"))]
    assert sorted((cell["method"], cell["seed"]) for cell in cells) == [
        (method, seed) for method in ("cutmix", "tl_align") for seed in (0, 1)
    ]
    page = (finished / "compare.html").read_text()
    assert page.count("<circle") == 4
    assert "http" not in page.replace("http://www.w3.org", "")  # it opens offline
    assert (finished / "compare.md").read_text().startswith("| method")
    assert (finished / "compare.svg").read_text().startswith('<svg xmlns="http://www.w3.org/2000/svg"')
    (speeds,) = finished.glob("speeds/*.json")
    assert json.loads(speeds.read_text())["cutmix"]["ratio"] == 1
    assert set(json.loads(speeds.read_text())) == {"cutmix", "tl_align", "sha256"}


def test_launched_processes_share_each_cell(tmp_path: Path) -> None:
    launched = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "labelflow"]
    arguments = command(tmp_path, "--seeds", "0", "--epochs", "1", "--warmup-epochs", "0")[3:]
    done = subprocess.run(
        [sys.executable, *launched, *arguments], env=ENVIRONMENT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    cells = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("cells/*.json"))]
    assert [(cell["method"], cell["environment"]["processes"]) for cell in cells] == [("cutmix", 2), ("tl_align", 2)]
    assert done.stdout.count("look at it") == 1


def test_a_failing_cell_does_not_stop_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A learning rate that is fine for one method, and an endless loss for none: the weights are broken by hand."""
    arguments = command(tmp_path, "--seeds", "0", "--epochs", "1", "--warmup-epochs", "0", "--speed-rounds", "0")[3:]
    spoilt = tmp_path / "runs"
    (cell,) = (cell for cell in cells_of_command(arguments) if cell.method == "cutmix")
    (spoilt / cell.name).mkdir(parents=True)
    (spoilt / cell.name / "recipe.json").write_text("{")  # a run that cannot be gone on with
    (spoilt / cell.name / "last.safetensors").touch()
    assert main(arguments) == 2
    told = capsys.readouterr()
    assert "1 cells failed and are missing from the table: cutmix, seed 0:" in told.err
    assert "is damaged" in told.err
    assert [path.name.split("-")[0] for path in tmp_path.glob("cells/*.json")] == ["tl_align"]
    assert "tl_align" in (tmp_path / "compare.md").read_text()


def cells_of_command(arguments: list[str]) -> list[Cell]:
    options = parse_arguments(
        Compare, arguments[2:], "", default=Compare(("cutmix", "tl_align"), find("quickstart").recipe, Path("compare"))
    )
    return make_cells(options.recipe, [find_method(name) for name in options.methods], options.seeds)


def test_finished_cells_are_reused(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.glob("cells/*")}
    arguments = command(finished, "--seeds", "0", "1")[3:]
    assert main(arguments) == 0
    table = capsys.readouterr().out
    assert "cutmix" in table
    assert "tl_align" in table
    assert {path: path.stat().st_mtime_ns for path in finished.glob("cells/*")} == before
    assert main(command(finished, "--seeds", "0", "1", "2", "--table-only")[3:]) == 0
    assert "2 cells are not finished" in capsys.readouterr().err


def test_cells_of_other_code_are_reused_only_when_asked(
    finished: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labelflow.comparison.cells.code_version", lambda: "another")
    arguments = command(finished, "--seeds", "0", "1", "--table-only")[3:]
    assert main(arguments) == 2
    assert "has no finished cell of this comparison" in capsys.readouterr().err
    assert main([*arguments, "--any-code"]) == 0
    assert "not finished" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare"], ""),
        (["compare", "--seeds", "1"], "name the recipe first: labelflow compare RECIPE METHODS"),
        (["compare", "quickstart", "cutmix"], "name at least two methods, the baseline first"),
        (["compare", "quickstart", "cutmix", "cutmix"], "methods must not repeat: cutmix cutmix"),
        (["compare", "quickstart", "cutmix", "tl_aling"], "did you mean tl_align"),
        (
            ["compare", "quickstart", "cutmix", "token_label"],
            "token_label need dense labels: make them with",
        ),
        (
            ["compare", "quickstart", "cutmix", "a=cutmix(grid=0)/plain"],
            "grid, a patch's side in pixels, must be at least 1",
        ),
        (
            ["compare", "quickstart", "cutmix", "a=attentive_cutmix(init='no.pth')/plain"],
            "there is no checkpoint no.pth",
        ),
        (["compare", "quickstart", "cutmix", "tl_align", "--seeds", "1", "1"], "--seeds must be at least one integer"),
        (["compare", "quickstart", "cutmix", "tl_align", "--jobs", "0"], "--jobs must be at least 1"),
    ],
)
def test_bad_input_is_told_before_any_work(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == (2 if message else 0)
    assert message in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())
