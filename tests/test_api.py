"""The words of the command line in Python: what they return, what they print, what they refuse."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import rmtree

import pytest
from PIL import Image

import labelflow as lf
from labelflow.api import TrainedRun
from labelflow.cli import main
from labelflow.data.outputs import check_output
from labelflow.engine import Interrupted
from labelflow.recipes import find

TINY = {
    "model": "vit_tiny_patch16_224(patch_size=8, embed_dim=24, depth=2, num_heads=3)",
    "image_size": 32,
    "batch": 16,
    "micro_batch": 16,
    "workers": 0,
    "epochs": 2,
    "warmup_epochs": 0,
}
WORLD = "world(train=64, val=24)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("api")


@pytest.fixture(scope="module")
def run(folder: Path) -> TrainedRun:
    return lf.train("quickstart", data=WORLD, out=folder / "run", quiet=True, **TINY)


def as_options() -> list[str]:
    return [word for name, value in TINY.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def test_training_is_what_the_command_line_trains(run: TrainedRun, tmp_path: Path) -> None:
    assert main(["train", "quickstart", "--data", WORLD, "--out", str(tmp_path / "run"), *as_options()]) == 0
    mine = json.loads((run.folder / "recipe.json").read_text())
    assert mine == json.loads((tmp_path / "run" / "recipe.json").read_text())
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if line["kind"] == "eval"][-1]
    assert run.metrics == {name: last[name] for name in ("top1", "top5", "balanced", "loss")}


def test_a_run_has_what_a_notebook_wants(run: TrainedRun) -> None:
    assert len(run.classifier.classes) == 10
    assert run.classifier.folder == run.folder
    table = run.to_pandas()
    assert list(table[table["kind"] == "eval"]["epoch"]) == [1, 2]
    page = run._repr_html_()
    assert page.startswith("<iframe srcdoc=")
    assert "&lt;h1&gt;quickstart&lt;/h1&gt;" in page
    assert '"' not in page.split('srcdoc="')[1].split('" style=')[0]  # the page cannot end its own frame


@pytest.mark.usefixtures("_no_figures")
def test_a_recipe_may_be_an_object(run: TrainedRun, tmp_path: Path) -> None:
    recipe = find("quickstart").recipe.change(source=WORLD, **TINY)
    again = lf.train(recipe, out=tmp_path / "run", quiet=True)
    assert again.metrics == run.metrics


def test_quiet_prints_nothing(folder: Path, run: TrainedRun, capfd: pytest.CaptureFixture[str]) -> None:
    again = lf.train("quickstart", data=WORLD, out=run.folder, resume=True, quiet=True, **TINY)
    assert again.metrics == run.metrics
    lf.annotate(WORLD, run.folder, folder / "quiet_labels", workers=0, quiet=True)
    lf.robust(run.folder, suite="clean", out=folder / "quiet_robust", workers=0, quiet=True)
    lf.compare("quickstart", data=WORLD, out=folder / "quiet", seeds=[0], speed_rounds=1, quiet=True, **TINY)
    assert capfd.readouterr() == ("", "")


def test_comparing(folder: Path) -> None:
    """The methods in their order, with the numbers of their cells; the second time nothing is trained."""
    chosen = {"data": WORLD, "out": folder / "compared", "seeds": (0, 1), "speed_rounds": 0, "quiet": True, **TINY}
    made = lf.compare("quickstart", ["cutmix", "tl_align"], **chosen)
    cells = [json.loads(path.read_text()) for path in (folder / "compared" / "cells").glob("*.json")]
    assert len(cells) == 4
    mean = sum(cell["metrics"]["top1"] for cell in cells if cell["method"] == "tl_align") / 2
    table = made.to_pandas().set_index("method")
    assert list(table.index) == ["cutmix", "tl_align"]
    assert table.loc["tl_align", "top1"] == pytest.approx(mean)
    assert table.loc["tl_align", "difference"] == pytest.approx(mean - table.loc["cutmix", "top1"])
    assert "tl_align" in made._repr_html_()
    times = {path: path.stat().st_mtime_ns for path in made.folder.glob("runs/*/metrics.jsonl")}
    assert lf.compare("quickstart", ["cutmix", "tl_align"], **{**chosen, "seeds": range(2)}).records == made.records
    assert times == {path: path.stat().st_mtime_ns for path in made.folder.glob("runs/*/metrics.jsonl")}


def test_robustness(folder: Path, run: TrainedRun) -> None:
    found = lf.robust([run.folder], suite=["clean", "shuffle"], out=folder / "robust", workers=0, quiet=True)
    table = found.to_pandas()
    assert list(dict.fromkeys(table["suite"])) == ["clean", "shuffle"]
    best = max(line["top1"] for line in run.records if line["kind"] == "eval")
    assert table["run"][0] == pytest.approx(best)  # of the best weights, on the run's own evaluation images
    assert "Robustness of run" in found._repr_html_()
    saved = json.loads((folder / "robust" / "robust.json").read_text())
    assert saved["suites"].keys() == {"clean", "shuffle"}


def test_settings_of_a_suite_need_no_prefix(folder: Path, run: TrainedRun) -> None:
    found = lf.robust(
        run.folder, suite="attack", out=folder / "attacked", attacks=("fgsm",), attack_samples=4, workers=0, quiet=True
    )
    assert found.options.settings.attack.attacks == ("fgsm",)
    assert any("fgsm" in row["metric"].lower() for row in found.records)


@pytest.mark.parametrize("divided", [False, True])
def test_what_is_written_may_not_become_images(
    run: TrainedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, divided: bool
) -> None:
    images = [tmp_path / "photos" / split for split in (("train", "val") if divided else ("",))]
    for place in images:
        for number, name in enumerate(("cat", "dog")):
            (place / name).mkdir(parents=True)
            Image.new("RGB", (32, 32), (100 * number, 0, 0)).save(place / name / "0.png")
    monkeypatch.chdir(images[-1])
    before = sorted(tmp_path.rglob("*"))
    for write in (
        lambda out: lf.train("quickstart", data=tmp_path / "photos", out=out, **TINY),
        lambda out: lf.compare("quickstart", data=tmp_path / "photos", out=out, speed_rounds=0, **TINY),
        lambda out: lf.annotate(tmp_path / "photos", run.folder, out),
    ):
        with pytest.raises(ValueError, match=rf"^made lies within the images .* try --out {tmp_path / 'made'}$"):
            write("made")
    assert sorted(tmp_path.rglob("*")) == before
    if divided:  # beside the two
        check_output(str(tmp_path / "photos"), tmp_path / "photos" / "made")
    check_output("world", tmp_path)
    check_output(str(tmp_path / "labels.csv"), tmp_path)


def test_a_run_is_not_trained_further_on_other_colours(run: TrainedRun, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="was trained with another mean or std: use --mean"):
        lf.train("quickstart", data=WORLD, out=tmp_path / "run", init=run.folder, mean=(0.5, 0.5, 0.5), **TINY)
    assert not (tmp_path / "run").exists()


def test_annotating(folder: Path, run: TrainedRun) -> None:
    store = lf.annotate(WORLD, run.folder, folder / "labels", top=3, workers=0, quiet=True)
    assert len(store) == 64
    assert store.manifest.grid == (4, 4)
    assert store.manifest.k == 3
    assert "<tr><th>grid</th><td>4×4</td></tr>" in store._repr_html_()


def test_rows_without_pandas(run: TrainedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ValueError, match="pip install pandas"):
        run.to_pandas()
    assert run.records[-1]["kind"] == "eval"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda out: lf.train("quickstrat", out=out), "did you mean quickstart"),
        (lambda out: lf.train("quickstart", out=out, epohcs=1), "no setting 'epohcs'; did you mean epochs"),
        (lambda out: lf.train("quickstart", out=out, data="no/such"), "no folder no/such"),
        (lambda out: lf.compare("quickstart", ["cutmix"], out=out), "at least two methods"),
        (lambda out: lf.compare("quickstart", ["cutmix", "tl_aling"], out=out), "did you mean tl_align"),
        (lambda out: lf.compare("quickstart", out=out, sedes=[1]), "no setting 'sedes'; did you mean seed"),
        (lambda out: lf.train(3, out=out), "a recipe is a name that labelflow list shows"),
        (lambda out: lf.train("quickstart", out=out, epochs="3"), "epochs must be of type int, such as 8, not '3'"),
        (lambda out: lf.train("quickstart", out=out, data=WORLD, source=WORLD), "data and source are the same"),
        (lambda out: lf.train("quickstart", out=out, dat=WORLD), "no setting 'dat'; did you mean data"),
        (lambda out: lf.compare("quickstart", out=out, seed=5), "seed 5 would not be used"),
        (
            lambda out: lf.compare("quickstart", out=out, seeds=3),
            "seeds must be of type tuple, such as .* not 3",
        ),
        (lambda out: lf.compare("quickstart", out=out, speed_rounds=-1), "speed-rounds must be at least 0"),
        (lambda out: lf.annotate(WORLD, "no_such_model", out), "no_such_model"),
        (lambda out: lf.annotate(WORLD, "resnet18", out, tops=3), "no setting 'tops'; did you mean top"),
        (lambda out: lf.robust("runs/none", out=out), "no such folder"),
        (lambda out: lf.robust([], out=out), "at least one model"),
        (lambda out: lf.robust("resnet18=random", out=out, suite="claen"), "did you mean clean"),
        (lambda out: lf.robust("resnet18=random", out=out, sampels=3), "no setting 'sampels'; did you mean samples"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(call: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message) as error:
        call(tmp_path / "out")  # type: ignore[operator]
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


SCRIPT = f"""
import labelflow as lf
print("once")
tiny = { {**TINY, "epochs": 1, "data": "world(train=16, val=8)"} }
made = lf.compare("quickstart", out="compared", seeds=[0], speed_rounds=0, quiet=True, **tiny)
print(len(made.cells))
"""


def test_a_script_needs_no_guard(tmp_path: Path) -> None:
    """Processes of cells do not run the script that started them."""
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "once\n2\n"), done.stderr


@pytest.mark.usefixtures("_no_figures")
def test_another_precision_in_the_same_process(tmp_path: Path) -> None:
    """In either order: a notebook is one process."""
    for precision in ("bf16", "no", "bf16"):
        short = {**TINY, "epochs": 1, "precision": precision}
        lf.train("quickstart", data="world(train=16, val=8)", out=tmp_path / "run", quiet=True, **short)
        environment = json.loads((tmp_path / "run" / "environment.json").read_text())
        assert environment["precision"] == precision
        rmtree(tmp_path / "run")


def test_training_in_another_thread(run: TrainedRun, tmp_path: Path) -> None:
    """Which receives no signals."""
    with ThreadPoolExecutor(1) as pool:
        trained = pool.submit(lf.train, "quickstart", data=WORLD, out=tmp_path / "run", quiet=True, **TINY).result()
    assert trained.metrics == run.metrics


def test_an_interruption_is_no_ordinary_exception() -> None:
    """`except Exception` in a loop over runs does not swallow Ctrl-C."""
    assert issubclass(Interrupted, KeyboardInterrupt)


def test_what_is_printed_is_short(run: TrainedRun) -> None:
    assert repr(run) == f"TrainedRun: {run.folder / 'report.html'}, .to_pandas()"
    assert "VisionTransformer" not in repr(run.classifier)


def test_the_best_evaluation(run: TrainedRun) -> None:
    assert run.best["top1"] == max(line["top1"] for line in run.records if line["kind"] == "eval")
