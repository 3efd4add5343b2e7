"""The command line, as a user runs it."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from tyro.conf import Positional

from labelflow.cli import main

SMALL = ["--model", "vit_tiny_patch16_224(patch_size=8, embed_dim=24, depth=2, num_heads=3)", "--image-size", "32"]
SMALL += ["--epochs", "2", "--warmup-epochs", "1", "--batch", "8", "--micro-batch", "4", "--workers", "0"]


HEAVY = {"torch", "torchvision", "timm", "accelerate", "matplotlib", "numpy"}
AT_ONCE = [
    "--help",
    "list",
    "list swin",
    "list --quoted",
    "show quickstart",
    "tarin",
    "train",
    "train --help",
    "train nope",
    "train quickstart --help",
    "train quickstart --epohcs 3",
    "train quickstart --epochs three",
    "segment nope",
    "segment segment_small --bakbone x",
    "detect detect_small --sides a",
    "transfer deit_small_patch16_224 cifar10 --epohcs 3",
    "compare nope",
    "compare quickstart cutmix nope",
    "compare quickstart cutmix tl_align --sedes 1",
    "eval --nope",
    "predict --nope",
    "predict runs/quickstart",
    "report --nope",
    "export --nope",
    "export runs/none --format nope",
    "robust --nope",
    "robust --help",
    "annotate --nope",
    "data",
    "data chek",
    "data check --help",
    "data check --nope",
    "data check no/such/folder --workers x",
    "labels",
    "labels nope",
    "labels draw --nope",
    "figure",
    "figure nope",
    "explore --nope",
    "coverage --nope",
]


def test_help_lists_and_typos_are_answered_without_torch() -> None:
    """All in one interpreter, which tells after each what it has imported."""
    program = f"""
import contextlib, io, json, sys
from labelflow.cli import main

for line in {AT_ONCE}:
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        try:
            main(line.split())
        except SystemExit:
            pass
    print(json.dumps([line, len(told.getvalue()), sorted({HEAVY} & sys.modules.keys())]))
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line for line, _, _ in answers] == AT_ONCE
    assert all(length > 40 for _, length, _ in answers)
    assert not [(line, heavy) for line, _, heavy in answers if heavy]


@pytest.mark.skipif(os.name == "nt", reason="pipes end otherwise")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_seen_enough_is_no_error(unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command, environment = [sys.executable, "-m", "labelflow", "--help"], {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, env=environment, timeout=120)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("how", ["--debug", "LABELFLOW_DEBUG"])
def test_a_traceback_can_be_asked_for(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "LABELFLOW_DEBUG":
        monkeypatch.setenv(how, "1")
    with pytest.raises(ValueError, match="there is no recipe"):
        main(["show", "zzz", *([how] if how == "--debug" else [])])


def test_our_own_assertions_and_bugs_are_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(recipe: Positional[str]) -> None:
        assert recipe == "right"

    monkeypatch.setattr("labelflow.commands.show.show", broken)
    with pytest.raises(AssertionError):
        main(["show", "wrong"])


@pytest.mark.parametrize(
    ("error", "launched", "told"),
    [
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed."), False, "a data worker was killed"),
        (RuntimeError("[gloo/transport/tcp/pair.cc:545] Read error"), True, "another of the launched processes"),
        (RuntimeError("[gloo/transport/tcp/pair.cc:545] Read error"), False, ""),
        (RuntimeError("a bug"), True, ""),
    ],
)
def test_a_process_that_died_is_told(
    error: Exception,
    launched: bool,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def broken(recipe: Positional[str]) -> None:
        raise error

    monkeypatch.setattr("labelflow.commands.show.show", broken)
    if launched:
        monkeypatch.setenv("RANK", "1")
    if told:
        assert main(["show", "this"]) == 2
        assert capsys.readouterr().err.startswith(f"labelflow: {told}")
    else:
        with pytest.raises(RuntimeError):
            main(["show", "this"])


def test_what_timm_asserts_is_told(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model for images of another size."""
    model = "vit_tiny_patch16_224(img_size=64, patch_size=8, embed_dim=24, depth=2, num_heads=3)"
    how = ["--data", str(photos), *SMALL, "--model", model, "--out", str(tmp_path / "run")]
    assert main(["train", "small_vit_tl_align", *how]) == 2
    told = capsys.readouterr().err.strip()
    assert "Input height (32) doesn't match model (64)" in told
    assert len(told.splitlines()) == 1


def test_suggested_commands_can_be_pasted_into_a_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = "world(train=4, val=2)", tmp_path / "my labels"
    weights = tmp_path / "weights.pth"
    model = timm.create_model("test_vit", num_classes=10)
    torch.save(model.state_dict(), weights)
    how = ["--model", "test_vit", "--weights", str(weights), "--image-size", "32", "--workers", "0", "--out", str(out)]
    assert main(["annotate", data, *how]) == 0
    lines = [line.split("labelflow ")[1] for line in capsys.readouterr().out.splitlines() if "them  " in line]
    assert shlex.split(lines[0]) == ["labels", "draw", str(out), data]
    assert [data, str(out)] == [shlex.split(lines[1])[place] for place in (3, 5)]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dark and bright images: a class that two epochs can learn."""
    folder = tmp_path_factory.mktemp("photos")
    chance = np.random.default_rng(0)
    for name, shade in (("bright", 200), ("dark", 40)):
        (folder / name).mkdir()
        for number in range(20):
            pixels = (shade + chance.normal(0, 20, (40, 48, 3))).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.jpg")
    return folder


@pytest.fixture(scope="module")
def run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a folder, from the command line."""
    out = tmp_path_factory.mktemp("runs") / "photos"
    command = [
        "train",
        "small_vit_tl_align",
        "--data",
        str(photos),
        "--out",
        str(out),
        *SMALL,
        "--val-fraction",
        "0.25",
    ]
    done = subprocess.run([sys.executable, "-m", "labelflow", *command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "30 training samples of 2 classes" in done.stdout
    assert "% top-1" in done.stdout
    assert done.stderr == ""
    return out


def test_train_on_a_folder_leaves_a_run(run: Path) -> None:
    names = {path.name for path in run.iterdir()}
    assert {"recipe.json", "config.json", "environment.json", "metrics.jsonl", "report.html"} <= names
    assert {"model.safetensors", "last.safetensors", "checkpoints"} <= names
    assert json.loads((run / "config.json").read_text())["label_names"] == ["bright", "dark"]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines if line["kind"] == "eval"] == [1.0, 2.0]


def test_eval_and_predict(run: Path, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run), "--as-json", "--weights", "last"]) == 0
    metrics = json.loads(capsys.readouterr().out)
    last = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][-1]
    assert metrics["loss"] == pytest.approx(last["loss"], abs=1e-5)
    assert main(["predict", str(run), str(photos / "dark" / "1.jpg"), str(photos / "bright" / "1.jpg")]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all("bright" in line and "dark" in line and "%" in line for line in lines)


def test_list_and_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    listed = capsys.readouterr().out
    assert "deit_small_tl_align_layers_2_4_6_8" in listed
    assert "80.6" in listed
    assert main(["show", "swin_tiny"]) == 0
    shown = capsys.readouterr().out
    assert "warmup_epochs: 5 -> 20" in shown
    assert "torchrun" in shown
    assert '"clip": 5.0' in shown


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    for command in capsys.readouterr().out.split("\n\n")[2].splitlines():
        assert "Example: labelflow" in command
    with pytest.raises(SystemExit) as stop:
        main(["train", "quickstart", "--help"])
    assert stop.value.code == 0
    assert "--skip-unreadable" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["tarin"], "did you mean train"),
        (["train", "deit_smal"], "did you mean deit_small"),
        (["train", "--epochs", "3"], "name the recipe first"),
        (["train", "quickstart", "--epoch", "3"], "has no option --epoch; did you mean --epochs?"),
        (["train", "zzz"], "(labelflow list shows all)"),
        (["report", "runs/a", "runs/b"], "has no argument runs/b"),
        (["train", "quickstart", "--epochs", "three"], "--epochs: invalid literal"),
        (["train", "quickstart", "--epochs", "0"], "epochs must be at least 1"),
        (["train", "quickstart", "--mixer", "cutmx"], "did you mean cutmix"),
        (["train", "quickstart", "--target", "magic"], "there is no target 'magic'"),
        (["train", "quickstart", "--model", "vit_enormous"], "timm has no model"),
        (["train", "quickstart", "--model", "vit_tiny_patch16_224(dephts=3)"], "dephts"),
        (["train", "quickstart", "--optimizer", "magic"], "there is no optimizer 'magic'"),
        (["train", "quickstart", "--optimizer", "sgd", "--betas", "0.9", "0.95"], "the optimizer sgd has no betas"),
        (["train", "quickstart", "--layer-decay", "1.2"], "layer_decay must lie in (0, 1]"),
        (["train", "quickstart", "--layer-decay", "0.8", "--model", "pit_ti_224"], "with timm's group_matcher"),
        (["train", "quickstart", "--freeze", "stages.0"], "no part 'stages.0'; it has stem, backbone, cls_token, pos_"),
        (
            ["train", "quickstart", "--freeze", "stem@8"],
            "stem@8 would thaw when the run is over, after epoch 8",
        ),
        (["train", "quickstart", "--freeze", "backbone", "head"], "--freeze backbone head leaves nothing to train"),
        (["train", "quickstart", "--freeze", "stem@soon"], "--freeze takes parts, or PART@EPOCH"),
        (["train", "quickstart", "--batch", "127", "--micro-batch", "48"], "cannot be cut"),
        (["train", "quickstart", "--repeats", "0"], "repeats must be at least 1"),
        (["train", "quickstart", "--auto-augment", "strong"], "auto_augment is timm's"),
        (["train", "quickstart", "--data", "nowhere"], "there is no folder nowhere"),
        (
            ["train", "small_vit_cutmix"],
            "there is no folder data/images; give one that holds a folder of images for each class",
        ),
        (["segment", "segment_small"], "give --data FOLDER, or --data world"),
        (["train", "quickstart", "--image-size", "63"], "--image-size 56 or 64"),
        (
            ["train", "quickstart", "--model", "inception_next_atto", "--image-size", "16"],
            "does not take images of 16×16",
        ),
        (["train", "quickstart", "--model", "test_resnet", "--target", "transmix"], "needs attention"),
        (["train", "quickstart", "--model", "test_resnet", "--mixer", "mixtoken(patch=8)"], "no patch embedding"),
        (["train", "quickstart", "--smoothing", "1"], "smoothing must lie in [0, 1)"),
        (["train", "quickstart", "--init", "nowhere.safetensors"], "there is no checkpoint nowhere"),
        (["eval", "nowhere"], "nowhere is not a run"),
        (["predict", "runs/nowhere", "."], ". has no images"),
        (["show", "nothing"], "there is no recipe"),
        (["list", "nothing"], "no recipe's name holds"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    command: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if "--data" not in command and command[:2] == ["train", "quickstart"]:
        command = [*command, "--data", "world(train=128, val=10)", "--workers", "0"]
    assert main(command) == 2
    told = capsys.readouterr().err
    assert message in told
    assert len(told.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())  # nothing is left behind


def test_other_classes_and_broken_files(
    run: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "other" / name).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (8, 8)).save(tmp_path / "other" / name / f"{number}.png")
    assert main(["eval", str(run), "--data", str(tmp_path / "other")]) == 2
    assert "has different classes" in capsys.readouterr().err
    (tmp_path / "bad.jpg").write_text("no image")
    assert main(["predict", str(run), str(tmp_path / "bad.jpg")]) == 2
    assert "cannot read" in capsys.readouterr().err
    assert main(["train", "small_vit_tl_align", "--data", str(photos), "--out", str(run), *SMALL]) == 2
    assert "already contains a run" in capsys.readouterr().err
    assert main(["eval", str(run), "--weights", str(run / "recipe.json")]) == 2
    assert "can be read" in capsys.readouterr().err


def test_names_of_files_may_be_any_bytes(
    run: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    strange = os.fsencode(tmp_path / "photos" / "dark") + b"/caf\xe9.jpg"
    try:
        os.rename(tmp_path / "photos" / "dark" / "3.jpg", strange)
    except OSError:
        pytest.skip("not on this file system")
    with open(os.fsencode(tmp_path / "photos" / "dark") + b"/\xff.jpg", "w") as file:
        file.write("not an image")
    data, out = str(tmp_path / "photos"), tmp_path / "labels"
    assert main(["annotate", data, "--model", str(run), "--out", str(out), "--workers", "0"]) == 2
    assert "dark/\\udcff.jpg: cannot identify image file" in capsys.readouterr().err
    how = ["--workers", "0", "--skip-unreadable", "1"]
    shutil.rmtree(out, ignore_errors=True)
    assert main(["annotate", data, "--model", str(run), "--out", str(out), *how]) == 0
    assert "skipped" in capsys.readouterr().out
    train = ["train", "small_vit_tl_align", "--data", data, *SMALL, "--out", str(tmp_path / "run"), "--epochs", "1"]
    assert main([*train, *how, "--labels", str(out), "--target", "token_label"]) == 0
    assert main(["eval", str(tmp_path / "run"), "--data", data]) == 0


@pytest.fixture
def two_processes() -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29617", "-m"]


def test_two_processes_compute_what_one_does(tmp_path: Path, two_processes: list[str]) -> None:
    """The same samples, pairs and boxes, and drop-path too; losses to rounding."""
    how = [*SMALL, "--data", "world(train=64, val=19)", "--drop-path", "0.3", "--log-updates", "1", "--ema", "0.9"]
    how += ["--save-updates", "1", "--keep", "9", "--layer-decay", "0.7", "--freeze", "stem", "blocks.0@1"]
    how += ["--mixer", "0.5*mixup(alpha=0.8) + 0.5*cutmix(alpha=1.0)", "--batch", "16", "--repeats", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}

    def arguments(name: str) -> list[str]:
        return ["train", "small_vit_tl_align", *how, "--out", str(tmp_path / name), "--resume"]

    def losses(name: str) -> list[dict]:
        return [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]

    assert main(arguments("one")) == 0
    command = [*two_processes, "labelflow", *arguments("two")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    one, two = losses("one"), losses("two")
    for newest in sorted((tmp_path / "two" / "checkpoints").iterdir())[5:]:
        shutil.rmtree(newest)
    assert main(arguments("two")) == 0  # two processes began it, one goes on after update 5
    both = losses("two")
    assert len(one) == len(two) == len(both) == 10
    for alone, shared, resumed in zip(one, two, both, strict=True):
        assert alone["loss"] == pytest.approx(shared["loss"], abs=1e-5)
        assert alone["loss"] == pytest.approx(resumed["loss"], abs=1e-5)
        assert alone.get("top1") == shared.get("top1") == resumed.get("top1")
    assert json.loads((tmp_path / "two" / "environment.json").read_text())["processes"] == 1
