"""`labelflow export`, as a user runs it."""

import importlib.util
import json
from pathlib import Path

import pytest

from labelflow.cli import main
from labelflow.recipes import find
from labelflow.tasks import train_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "run"
    recipe = find("quickstart").recipe.change(
        model="vit_tiny_patch16_224(patch_size=16, embed_dim=24, depth=1, num_heads=3)",
        source="world(train=16, val=8)",
        batch=16,
        micro_batch=16,
        epochs=1,
        warmup_epochs=0,
        workers=0,
    )
    train_run(recipe, folder, resume=False, quiet=True)
    return folder


def test_what_it_prints(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(run), "--format", "torch", "--out", str(tmp_path / "out")]) == 0
    path, compared = capsys.readouterr().out.splitlines()
    assert Path(path) == tmp_path / "out" / "model.pt2"
    assert Path(path).exists()
    assert compared.startswith("compared with torch on 8 evaluation images: 100 % of predictions agree, logits differ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["RUN", "--format", "tflite"], "invalid choice 'tflite' for argument '--format'"),
        (["RUN", "--out", "RUN"], "run already exists; choose another --out"),
        (["RUN", "--format", "onnx", "--repo", "me/photos"], "the Hub gets timm's format, not onnx"),
        (["RUN", "--repo", "me/my/photos"], "'me/my/photos' is not the name of a repo on the Hub, such as me/photos"),
        (["RUN", "--weights", "none.pth"], "there is no checkpoint none.pth"),
        (["runs/none"], "runs/none is not the folder of a run: say where to write, with --out FOLDER"),
        (["runs/none", "--out", "OUT"], "runs/none is not a run: there is no such folder"),
        (["EMPTY"], "is not a run: it has no config.json"),
        (["UNTRAINED"], "has no weights yet; they are written with the first checkpoint"),
        (["SEGMENTER"], "is not the run of a classifier: its config.json has no pretrained_cfg"),
    ],
)
def test_bad_input(
    run: Path, tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("EMPTY", "UNTRAINED", "SEGMENTER"):
        (tmp_path / name).mkdir()
    (tmp_path / "UNTRAINED" / "config.json").write_bytes((run / "config.json").read_bytes())
    (tmp_path / "SEGMENTER" / "config.json").write_text(json.dumps({"task": "segment", "label_names": ["a"]}))
    places = {"RUN": str(run), **{name: str(tmp_path / name) for name in ("EMPTY", "UNTRAINED", "SEGMENTER", "OUT")}}
    before = sorted([*run.rglob("*"), *tmp_path.rglob("*")])
    assert main(["export", *(places.get(word, word) for word in arguments)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert sorted([*run.rglob("*"), *tmp_path.rglob("*")]) == before


def test_a_package_that_is_missing(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("labelflow.formats.exported.find_spec", lambda name: None if "onnx" in name else importlib.util)
    assert main(["export", str(run), "--format", "onnx"]) == 2
    assert capsys.readouterr().err == (
        "labelflow: the format onnx needs onnx, onnxscript, onnxruntime: pip install onnx onnxscript onnxruntime\n"
    )
    assert not (run / "onnx").exists()
