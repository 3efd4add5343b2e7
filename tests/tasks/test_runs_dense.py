"""Segmenters and detectors as a user trains them: runs that learn, go on, are evaluated, drawn, and refused."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import faster_coco_eval
import numpy as np
import pycocotools.coco
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from labelflow.classifier import load
from labelflow.cli import main
from labelflow.data.images import read
from labelflow.engine import Interrupted, Run
from labelflow.engine.groups import norms_apart
from labelflow.recipes import find_any
from labelflow.tasks import LoadedRun, evaluate_run, find_objects, find_segments, load_run, train_run
from labelflow.tasks.dense.task import DenseStudent
from labelflow.tasks.detect.model import make_detector
from labelflow.tasks.detect.settings import Sizes
from labelflow.tasks.recipe import read_any_recipe
from labelflow.tasks.segment.model import make_segmenter

VIT = "vit_tiny_patch16_224(patch_size=8, embed_dim=32, depth=4, num_heads=2)"
SWIN = "swin_tiny_patch4_window7_224(embed_dim=16, depths=(1, 1, 1, 1), num_heads=(1, 2, 4, 8), window_size=4)"
TINY: dict[str, dict[str, Any]] = {
    "segment": {"backbone": VIT, "width": 8, "crop": 32, "short": 32, "source": "world(train=16, val=6)"},
    "detect": {
        "backbone": SWIN,
        "source": "world(train=16, val=6, size=64)",
        "channels": 8,
        "hidden": 16,
        "samples": 8,
        "proposals": 20,
        "sides": (64,),
        "short_side": 64,
    },
}
SHORT = {
    "epochs": 2,
    "warmup_epochs": 0,
    "warmup_updates": 0,
    "batch": 8,
    "micro_batch": 4,
    "workers": 0,
    "log_updates": 1,
    "eval_epochs": 1,
}


def tiny(kind: str, **changes: Any) -> Any:
    return find_any(f"{kind}_quickstart").recipe.change(**{**TINY[kind], **SHORT, **changes})


@pytest.fixture(scope="module", params=["segment", "detect"])
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp(request.param) / "run"
    train_run(tiny(request.param), folder, resume=False, quiet=True)
    return request.param, folder


def test_a_run_is_as_a_classifiers(finished: tuple[str, Path]) -> None:
    kind, folder = finished
    run = Run(folder)
    assert read_any_recipe(run) == tiny(kind, precision="no")
    assert run.read("recipe.json")["task"] == run.config()["task"] == kind
    kinds = [line["kind"] for line in run.metrics()]
    assert kinds == ["train", "train", "eval"] * 2  # two updates an epoch
    assert set(run.read("classes.json")) == set(run.config()["label_names"])
    headline = {"segment": "miou", "detect": "box_ap"}[kind]
    assert run.metrics()[-1][headline] == pytest.approx(evaluate_run(folder, "last")[headline])


def test_it_goes_on_where_it_was_stopped(
    finished: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after each update, in the middle of an epoch too, and resumed: the same weights, bit for bit."""
    kind, whole = finished
    monkeypatch.setattr("labelflow.engine.loop._stop_signals", _always_asked)
    recipe, stops = tiny(kind), 0
    while True:
        try:
            train_run(recipe, tmp_path / "run", resume=True, quiet=True)
            break
        except Interrupted:
            stops += 1
    assert stops == 3
    ends = [load_file(folder / "last.safetensors") for folder in (whole, tmp_path / "run")]
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def _always_asked() -> Any:
    from contextlib import nullcontext

    return nullcontext(lambda accelerator: True)


def test_commands_on_a_run(finished: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kind, folder = finished
    assert main(["report", str(folder)]) == 0
    page = (folder / "report.html").read_text()
    capsys.readouterr()
    assert page.count('alt="Ground truth and prediction"') == 6
    assert "no predictions" not in page
    assert "http" not in page.replace("http://www.w3.org", "")
    extra = ["--scales", "1", "0.5", "--flips"] if kind == "segment" else []
    assert main(["eval", str(folder), "--as-json", *extra]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(told) - {"classes"} == {
        key for key in Run(folder).metrics()[-1] if key not in ("kind", "update", "epoch")
    }
    with pytest.raises(ValueError, match="is not the run of a classifier"):
        load(folder)
    assert main(["train", "quickstart", "--out", str(folder), "--resume"]) == 2
    assert f"is the run of a {kind}" in capsys.readouterr().err


@pytest.fixture
def scenes(tmp_path: Path) -> Path:
    for seed, name in enumerate(("a/1.png", "b/1.jpg")):
        (tmp_path / "scenes" / name).parent.mkdir(parents=True)
        Image.effect_noise((70 + 20 * seed, 50), 80).save(tmp_path / "scenes" / name)
    return tmp_path / "scenes"


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # pycocotools with numpy 2
def test_predictions_are_pictures_masks_and_objects(
    finished: tuple[str, Path], scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, folder = finished
    out, loaded = tmp_path / "out", load_run(folder)
    assert main(["predict", str(folder), str(scenes), "--out", str(out), "--least", "0"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["file", "found", "picture"]
    files = [scenes / "a" / "1.png", scenes / "b" / "1.jpg"]
    for file, name, line in zip(files, ("a/1.png", "b/1.png"), lines, strict=True):
        assert line.startswith(str(file))
        assert line.split()[-1] == str(out / "pictures" / name)
        with Image.open(out / "pictures" / name) as drawn:
            assert drawn.width >= 384
    if kind == "segment":
        _check_masks(loaded, files, out, lines)
    else:
        _check_objects(loaded, files, out)


def _check_masks(loaded: LoadedRun[Any], files: list[Path], out: Path, lines: list[str]) -> None:
    assert (out / "classes.txt").read_text().splitlines() == loaded.classes
    for file, name, line in zip(files, ("a/1.png", "b/1.png"), lines, strict=True):
        found = find_segments(loaded, read(file))
        with Image.open(out / "masks" / name) as mask:
            assert len(mask.getbands()) == 1
            assert np.array_equal(np.array(mask), found.numpy())
        most = int(found.flatten().bincount().argmax())
        share = 100 * (found == most).float().mean().item()
        assert f"{loaded.classes[most]} {share:.1f} %" in line


def _check_objects(loaded: LoadedRun[Any], files: list[Path], out: Path) -> None:
    """COCO's own tools read them: all objects, their boxes and masks."""
    images = json.loads((out / "images.json").read_text())
    assert [image["file_name"] for image in images["images"]] == [str(file) for file in files]
    assert [(image["width"], image["height"]) for image in images["images"]] == [(70, 50), (90, 50)]
    assert [category["name"] for category in images["categories"]] == loaded.classes
    for tools in (pycocotools.coco, faster_coco_eval):
        results = tools.COCO(str(out / "images.json")).loadRes(str(out / "objects.json"))
        for number, file in enumerate(files, start=1):
            found = find_objects(loaded, read(file), least=0)
            own = results.loadAnns(results.getAnnIds(imgIds=[number]))
            assert len(own) == len(found["labels"]) > 0
            assert {one["file_name"] for one in own} == {str(file)}
            assert [one["category"] for one in own] == [loaded.classes[label] for label in found["labels"]]
            assert [one["category_id"] for one in own] == [label + 1 for label in found["labels"].tolist()]
            assert [one["score"] for one in own] == pytest.approx(found["scores"].tolist())
            boxes, corners = torch.tensor([one["bbox"] for one in own]), found["boxes"]
            torch.testing.assert_close(boxes, torch.cat([corners[:, :2], corners[:, 2:] - corners[:, :2]], 1))
            for one, mask in zip(own, found["masks"], strict=True):
                assert np.array_equal(results.annToMask(one), mask.numpy())


def test_what_dense_runs_cannot_predict(
    finished: tuple[str, Path], scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, folder = finished
    (scenes / "bad.png").write_text("no image")
    out, bad = tmp_path / "out", scenes / "bad.png"
    for arguments, message in (
        ([], "no images; give files, folders or patterns"),
        ([str(scenes / "a"), "--format", "csv"], "--format is for classifiers"),
        ([str(scenes / "a"), "--out", str(bad)], "bad.png is a file; name a folder"),
        ([str(bad), "--out", str(out)], "cannot read"),
    ):
        assert main(["predict", str(folder), *arguments]) == 2
        (told,) = capsys.readouterr().err.splitlines()
        assert message in told
    assert not out.exists()
    assert main(["predict", str(folder), str(scenes), "--out", str(out), "--skip-unreadable", "1"]) == 0
    told = capsys.readouterr()
    assert told.err.startswith(f"skipped {bad}: ")
    assert len(told.out.splitlines()) == 3


def test_a_run_of_ours_is_a_backbone(tmp_path: Path) -> None:
    """Its weights and its arguments are taken, whatever the recipe's own backbone is, and it may be gone later."""
    classifier = find_any("quickstart").recipe.change(model=VIT, source="world(train=64, val=8)", **SHORT)
    train_run(classifier, tmp_path / "vit", resume=False, quiet=True)
    recipe = tiny("segment", backbone=str(tmp_path / "vit"), lr=0.0, min_lr=0.0, weight_decay=0.0, epochs=1)
    train_run(recipe, tmp_path / "run", resume=False, quiet=True)
    before = load_file(tmp_path / "vit" / "model.safetensors")
    (tmp_path / "vit").rename(tmp_path / "gone")
    after = load_run(tmp_path / "run").model.levels.model.state_dict()
    shared = [name for name in after if "pos_embed" not in name]
    assert any(name.startswith("blocks.3") for name in shared)
    assert all(torch.equal(after[name], before[name]) for name in shared)


def test_compiled_for_training_alone() -> None:
    """Its gradients are those of the model as it is; evaluations, whose images have many sizes, compile nothing."""
    torch.manual_seed(0)
    model = make_segmenter(VIT, classes=3, width=4, image_size=32)
    plain, compiled = DenseStudent(deepcopy(model)), DenseStudent(model)
    compiled.compile(backend="eager")
    images = torch.rand(2, 3, 32, 32)
    for student in (plain, compiled):
        torch.manual_seed(1)  # dropout
        student.train()(images).logits.square().mean().backward()
    pairs = zip(plain.parameters(), compiled.parameters(), strict=True)
    assert all(torch.allclose(one.grad, other.grad, atol=1e-6) for one, other in pairs if one.grad is not None)
    assert any(parameter.grad is not None for parameter in compiled.parameters())
    torch._dynamo.reset()
    with torch.no_grad(), torch.compiler.set_stance("fail_on_recompile"):
        for size in (24, 40):
            compiled.eval()(torch.rand(1, 3, size, size))


def test_positions_and_norms_are_exempt_in_a_detector_too() -> None:
    detector = DenseStudent(make_detector(SWIN, classes=2, sizes=Sizes(channels=8, hidden=16)))
    decays = {id(one): group["weight_decay"] for group in norms_apart(detector, 0.05) for one in group["params"]}
    named = dict(detector.named_parameters())
    tables = [name for name in named if "relative_position_bias_table" in name]
    assert len(tables) == 4
    assert all(decays[id(named[name])] == 0 for name in tables)
    assert decays[id(named["model.roi_heads.stages.0.box.shift.bias"])] == 0.05
