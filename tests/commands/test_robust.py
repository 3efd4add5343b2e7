"""`labelflow robust` as a user runs it: models trained here, tables and files, and errors before any work."""

import json
import re
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

from golden_corruptions.make import write_textures
from labelflow.cli import main
from labelflow.data import Data, World
from labelflow.data.imagenet import imagenet_classes
from labelflow.engine import Training
from labelflow.robustness import datasets
from labelflow.robustness.attacks import ATTACKS
from labelflow.robustness.corruption_error import ALEXNET
from labelflow.robustness.corruptions import CORRUPTIONS, EXTRA
from labelflow.robustness.run import _same
from labelflow.robustness.suites import SUITES
from labelflow.tasks import Recipe, evaluate_run, train_run

MODEL = "vit_tiny_patch16_224(patch_size=8, embed_dim=48, depth=2, num_heads=3)"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain model and one with TL-Align, trained a little on the sample world."""
    root = tmp_path_factory.mktemp("robust")
    data = Data(
        source="world(train=256, val=40)", image_size=32, auto_augment="", erasing=0.0, color_jitter=0.0, workers=0
    )
    training = Training(epochs=6, batch=32, micro_batch=32, warmup_epochs=0, ema=0.0, lr=0.003, lr_batch=0)
    for target in ("plain", "tl_align"):
        recipe = Recipe(
            model=MODEL, target=target, mixer="0.5*cutmix + 0.5*none", drop_path=0.0, data=data, training=training
        )
        train_run(recipe, root / target, resume=False, quiet=True)
    return root


def run(*args: object) -> int:
    return main(["robust", *map(str, args), "--workers", "0"])


def refused(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    assert run(*args) == 2
    message = capsys.readouterr().err
    assert message.startswith("labelflow: ")
    assert message.count("\n") == 1
    return message


def test_root_counts_without_data(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def open_dataset(data: Data, *more: object) -> None:
        raise ValueError(f"{data.source} in {data.root}")

    monkeypatch.setattr(datasets, "open_dataset", open_dataset)
    told = refused(capsys, runs / "plain", "--root", "elsewhere", "--out", tmp_path / "out")
    assert told == "labelflow: world(train=256, val=40) in elsewhere\n"


def test_names_are_printed_as_they_are(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copytree(runs / "plain", tmp_path / "a[bold]b [red]")
    assert run(tmp_path / "a[bold]b [red]", "--suite", "clean", "--samples", 4, "--out", tmp_path / "out") == 0
    out = capsys.readouterr().out
    assert "a[bold]b [red]" in out
    assert "done before" not in out
    assert "from the cache" not in out


def test_two_models_side_by_side(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = (runs / "plain", runs / "tl_align")
    parts = ("apgd_ce", "apgd_t", "fab_t", "square")
    few = ("--attack-samples", 8, "--attacks", "fgsm", "pgd(steps=5)", "autoattack", *parts, "--radii", 24)
    quick = ("--corruptions", "gaussian_noise", "fog", "contrast", "saturate")
    salient = ("--salient", models[0])
    assert run(*models, "--out", tmp_path / "out", *few, *quick, *salient) == 0
    printed = capsys.readouterr().out
    assert re.search(r"plain\s+tl_align", printed)
    found = json.loads((tmp_path / "out" / "robust.json").read_text())["suites"]
    assert list(found) == ["clean", "corruptions", "occlusion", "salient", "shuffle", "calibration", "attack"]
    for name in ("plain", "tl_align"):
        assert found["clean"]["metrics"]["top-1"][name] == pytest.approx(evaluate_run(runs / name)["top1"])
        curve = found["occlusion"]["curves"]["Top-1 accuracy, %, with random cells occluded"]["lines"][name]
        assert curve[0] == [0.0, found["clean"]["metrics"]["top-1"][name]]
        under = found["attack"]["metrics"]
        clean = under["clean accuracy on these images"][name]
        assert under["autoattack, L∞ 24/255"][name] <= under["pgd(steps=5), L∞ 24/255"][name] < clean
        assert under["fgsm, L∞ 24/255"][name] < clean
        assert under["autoattack, L∞ 24/255"][name] <= min(under[f"{part}, L∞ 24/255"][name] for part in parts)
        left = found["salient"]["curves"]["Top-1 accuracy, %, only salient cells visible"]["lines"][name]
        assert left[-1] == [1.0, curve[0][1]]
        severities = found["corruptions"]["curves"]["Top-1 accuracy, %: fog"]["lines"][name]
        assert severities[0] == curve[0]
        mean = sum(top1 for _, top1 in severities[1:]) / 5
        assert found["corruptions"]["details"]["fog"][name] == pytest.approx(mean)
    corrupted = found["corruptions"]
    assert set(corrupted["details"]) == {"gaussian_noise", "fog", "contrast", "saturate"}
    assert "mean top-1 over 3 corruptions" in corrupted["metrics"]  # saturate is an extra
    assert "mCE" not in corrupted["metrics"]  # which needs ImageNet
    page = (tmp_path / "out" / "robust.html").read_text()
    assert not re.search(r"https?:|@import|<link|<script|url\(", page)
    assert page.count("<svg") == 19 + 4 + 2  # of each corruption, too; and two models in the legend
    assert page.count("data:image/png") == 4 + 10 + 20 + 7  # of corruptions, occlusion and shuffling
    drawn = (tmp_path / "out" / "robust.svg").read_text()
    assert drawn.count("<svg") == 20

    assert run(*models, "--out", tmp_path / "out", *few, *quick, *salient, "--as-json") == 0  # from the cache
    assert json.loads(capsys.readouterr().out)["suites"] == found


def test_own_folders_and_some_suites(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World("val", 12, 40)
    for index in range(12):
        image, label = world.load(index)
        path = tmp_path / "photos" / world.classes[label] / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)
    own = ("--data", tmp_path / "photos", "--out", tmp_path / "out")
    few = ("--corruptions", "pixelate", "--attacks", "fgsm")
    assert run(runs / "plain", *own, *few, "--suite", "corruptions,attack", "--norm", "l2", "--as-json") == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["suites"]) == ["corruptions", "attack"]
    assert "fgsm, L2 0.5" in found["suites"]["attack"]["metrics"]
    (tmp_path / "photos" / "unicorn").mkdir()
    Image.new("RGB", (32, 32)).save(tmp_path / "photos" / "unicorn" / "1.png")
    assert "classes are unknown to plain: unicorn; it knows 10, such as" in refused(capsys, runs / "plain", *own)


def test_imagenet_c_from_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With timm's names, the archives' folders, and mCE: a model that always predicts one class."""
    model = timm.create_model("test_vit", img_size=32)
    torch.nn.init.zeros_(model.head.weight)
    torch.nn.init.zeros_(model.head.bias)
    with torch.no_grad():
        model.head.bias[7] = 1.0  # its prediction
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    classes = imagenet_classes()
    for at, name in enumerate(CORRUPTIONS):
        for severity in range(1, 6):
            for label in (3, 7) if severity == 1 else (3,):
                path = (
                    tmp_path / "c" / ("noise" if at < 3 else "other") / name / str(severity) / classes[label] / "1.png"
                )
                path.parent.mkdir(parents=True)
                Image.fromarray(pixels).save(path)
    arguments = (f"test_vit={tmp_path / 'weights.safetensors'}", "--image-size", 32, "--imagenet-c", tmp_path / "c")
    assert run(*arguments, "--out", tmp_path / "out", "--as-json") == 0
    found = json.loads(capsys.readouterr().out)["suites"]["corruptions"]
    expected = sum(100 * (0.5 + 4) / (5 * error) for error in ALEXNET.values()) / 15
    assert next(iter(found["metrics"]["mCE"].values())) == pytest.approx(expected)
    assert "relative mCE" not in found["metrics"]  # there are no clean images
    for label in (0, 1):  # some other images are not the clean ones of these
        (tmp_path / "own" / classes[label]).mkdir(parents=True)
        Image.fromarray(pixels).save(tmp_path / "own" / classes[label] / "1.png")
    assert (
        run(*arguments, "--out", tmp_path / "out", "--data", tmp_path / "own", "--suite", "corruptions", "--as-json")
        == 0
    )
    assert json.loads(capsys.readouterr().out)["suites"]["corruptions"]["metrics"] == found["metrics"]
    for label in (3, 5, 7, 9):  # a quarter is right
        (tmp_path / "clean" / classes[label]).mkdir(parents=True)
        Image.fromarray(pixels).save(tmp_path / "clean" / classes[label] / "1.png")
    for label in set(range(1000)) - {3, 5, 7, 9}:
        (tmp_path / "clean" / classes[label]).mkdir()
    clean = ("--data", tmp_path / "clean", "--suite", "corruptions", "--as-json")
    assert run(*arguments, "--out", tmp_path / "out", *clean) == 0
    results = json.loads(capsys.readouterr().out)["suites"]["corruptions"]["metrics"]
    lost = [100 * (0.5 + 4 - 5 * 0.75) / (5 * (error - 0.4345)) for error in ALEXNET.values()]
    assert next(iter(results["relative mCE"].values())) == pytest.approx(sum(lost) / 15)
    (tmp_path / "c" / "other" / "fog" / "5").rename(tmp_path / "c" / "other" / "fog" / "six")
    assert "fog has no folder 5" in refused(capsys, *arguments)
    assert "has no folder spatter; choose corruptions that it has" in refused(
        capsys, *arguments, "--corruptions", "spatter"
    )


def _damaged_frost(folder: Path) -> Path:
    folder.mkdir()
    write_textures(folder)
    (folder / "frost2.png").write_bytes(b"no image")
    return folder


def _one_class(folder: Path) -> Path:
    kind = folder / World.classes[0]
    kind.mkdir(parents=True)
    Image.new("RGB", (32, 32)).save(kind / "1.png")
    return folder


def _latin(folder: Path) -> Path:
    folder.mkdir()
    (folder / "labels.csv").write_bytes("file,class\nbär.png,a\n".encode("latin-1"))
    return folder


def test_errors_come_before_any_work(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain, out = runs / "plain", ("--out", tmp_path / "out")
    cases = {
        (): "name at least one model",
        (plain, "--suite", "corruption"): "no suite 'corruption'; did you mean corruptions",
        (plain, "--attacks", "fsgm"): "did you mean fgsm",
        (plain, "--corruptions", "fogg"): "did you mean fog",
        (plain, "--data", tmp_path / "lost"): "there is no folder",
        (plain, "--imagenet-a", tmp_path): "plain has 10 classes of its own; this data set needs",
        (plain, "--imagenet-c", tmp_path): "plain has 10 classes of its own; this data set needs",
        (plain, plain): "duplicate model in",
        (tmp_path / "no" / "run",): "is not a run: there is no such folder",
        ("test_vit=nothing.pth",): "there is no checkpoint nothing.pth",
        (plain, "--occlusion-grid", 33): "--occlusion-grid must be at most 32, the image size of plain",
        (plain, "--samples", -1): "--samples must be at least 0",
        (plain, "--frost", tmp_path): "lacks frost1.png",
        (plain, "--attacks", "pgd(step=3)"): "its settings are: steps, restarts",
        (plain, "--attacks", "autoattack(steps=3)"): "autoattack takes no settings; its parts do: apgd_ce",
        (plain, "--radii", 1, 0): "labelflow: --radii must be above 0, not 1 0",
        (plain, "--batch", -5): "--batch must be at least 0",
        (
            plain,
            "--suite",
            "clean",
            "--imagenet-a",
            tmp_path,
        ): "--imagenet-a is an option of the natural suite, which --suite",
        (plain, "--suite", "natural"): "needs at least one of --imagenet-v2",
        (plain, f"{plain}/../plain"): "duplicate model in",
        ("test_vitt",): "there are test_vit",
        (plain, "--salient", tmp_path / "no" / "run"): "is not a run: there is no such folder",
        (plain, "--frost", _damaged_frost(tmp_path / "frost")): "frost2.png; a folder of frost textures needs",
        (plain, "--data", _one_class(tmp_path / "one")): "attacks need at least two classes",
        (plain, "--data", _latin(tmp_path / "latin")): "labels.csv is not UTF-8",
    }
    for arguments, message in cases.items():
        assert message in refused(capsys, *arguments, *out), arguments
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").write_text("")
    assert "cannot write to --out" in refused(capsys, plain, "--out", tmp_path / "file")


def test_two_classes_have_their_own_attacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = timm.create_model("test_vit", img_size=32, num_classes=2)
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        Image.new("RGB", (32, 32), "red" if name == "cat" else "blue").save(tmp_path / "pets" / name / "1.png")
    weights = tmp_path / "weights.safetensors"
    arguments = (f"test_vit={weights}", "--image-size", 32, "--data", tmp_path / "pets", "--out", tmp_path / "out")
    assert run(*arguments, "--suite", "clean,attack", "--radii", 64) == 0
    printed = capsys.readouterr().out
    assert "autoattack: 2 classes: without apgd_t" in printed
    assert "the DLR loss needs at least 3 classes, not 2" in refused(capsys, *arguments, "--attacks", "apgd_dlr")


def test_a_runs_own_folder_may_be_written_in_other_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "photos").mkdir()
    monkeypatch.chdir(tmp_path)
    assert _same("photos", "./photos/")
    assert _same("photos", str(tmp_path / "photos"))
    assert _same("world(val=8)", "world(val=8)")
    assert not _same("photos", "others")


def test_help_has_an_example_and_all_names(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["robust", "--help"])
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "Example: labelflow robust runs/plain runs/tl_align" in text
    assert not {name for name in (*SUITES, *ATTACKS, *EXTRA) if not re.search(rf"\b{name}[,;. ]", text)}
