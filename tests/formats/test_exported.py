"""Exports answer as labelflow does, in a process that has no labelflow; what does not is not kept."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from shutil import copytree, rmtree
from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

import labelflow as lf
from labelflow import Exported
from labelflow.data import Data, open_source
from labelflow.files import forget_file
from labelflow.formats import FORMATS, timm_folder, torch_program
from labelflow.recipes import find
from labelflow.tasks import evaluate_run, train_run

MODELS = {
    "vit": "vit_tiny_patch16_224(patch_size=16, embed_dim=24, depth=1, num_heads=3)",
    "swin": "swin_tiny_patch4_window7_224(window_size=8, embed_dim=8, depths=(1, 2), num_heads=(1, 2))",
    "lvvit": "lvvit_s(embed_dim=24, depth=1, num_heads=3, stem_width=8)",
    "cnn": "test_resnet",
}

OWN = [
    "pvt_tiny(img_size=64, embed_dims=(8, 16, 16, 16), num_heads=(1, 1, 1, 1), depths=(1, 1, 1, 1), num_classes=3)",
    "t2t_vit_7(img_size=32, embed_dim=24, depth=1, num_heads=2, num_classes=3)",
]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample world as files."""
    folder = tmp_path_factory.mktemp("data") / "photos"
    for split, count in (("train", 16), ("val", 40)):
        world = open_source(Data(source="world(train=16, val=40)"), split)
        for index in range(count):
            image, label = world.load(index)
            path = folder / split / world.classes[label] / f"{index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            image.save(path)
    return folder


@pytest.fixture(scope="module")
def runs(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name, model in MODELS.items():
        recipe = find("quickstart").recipe.change(
            model=model,
            source=str(photos),
            mean=(0.3, 0.4, 0.5),
            test_crop=0.8,
            batch=16,
            micro_batch=16,
            epochs=2,
            warmup_epochs=0,
            workers=0,
            **({} if name != "cnn" else {"target": "plain"}),
        )
        train_run(recipe, folder / name, resume=False, name="mine", quiet=True)
    return folder


@pytest.fixture(scope="module")
def exported(runs: Path) -> dict[str, Exported]:
    return {f"{name} {format}": lf.export(runs / name, format) for name in MODELS for format in FORMATS}


@pytest.fixture(scope="module")
def alone(
    exported: dict[str, Exported], photos: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """Their answers without labelflow; and of models that timm does not know then, with labelflow.models."""
    folders = {}
    for name, result in exported.items():
        folder = result.path if result.path.is_dir() else result.path.parent
        Image.open(next(photos.rglob("val/*/7.png"))).save(folder / "image.jpg")
        folders[name] = (name.split()[1], str(folder))
    asked = tmp_path_factory.mktemp("asked") / "exported.json"
    asked.write_text(json.dumps(folders))
    command = [sys.executable, "-W", "error", str(Path(__file__).with_name("alone.py")), str(asked)]
    done = subprocess.run([*command, str(photos / "val")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", MODELS)
def test_without_labelflow(
    name: str, format: str, exported: dict[str, Exported], runs: Path, photos: Path, alone: list[dict[str, Any]]
) -> None:
    """The same class for every image, and so `labelflow eval`'s top-1 to the digit; and the card's lines work."""
    key = f"{name} {format}"
    if key == "lvvit timm":
        assert alone[0].pop(key) == "Unknown model (lvvit_s)"
        assert "import labelflow.models" in (runs / "lvvit" / "timm" / "README.md").read_text()
    predictions, told = (alone[0] | alone[1])[key]
    classifier, files = lf.load(runs / name), sorted((photos / "val").rglob("*.png"))
    assert predictions == [one.label for one in classifier.predict(files, top=1)]
    right = [prediction == file.parent.name for prediction, file in zip(predictions, files, strict=True)]
    assert 100 * sum(right) / len(right) == evaluate_run(runs / name)["top1"]
    path = exported[key].path
    image = (path if path.is_dir() else path.parent) / "image.jpg"
    assert told == classifier.predict(image, top=1)[0].label


def test_what_was_compared(exported: dict[str, Exported], runs: Path) -> None:
    for name, result in exported.items():
        model, format = name.split()
        assert (result.images, result.agreement) == ("24 evaluation images", 1)
        assert result.difference < 1e-4
        assert result.difference == 0 or format != "timm"  # the very same
        files = {"timm": "", "onnx": "model.onnx", "torch": "model.pt2"}
        assert result.path == runs / model / format / files[format]
    assert "24 evaluation images: 100 % of predictions agree, logits differ by at most 0" in str(exported["vit timm"])


def test_the_best_tokens_scores_are_in_an_lvvit(runs: Path, exported: dict[str, Exported]) -> None:
    classifier, images = lf.load(runs / "lvvit"), torch.randn(3, 3, 64, 64)
    with_tokens = classifier.logits(images)
    classifier.model.token_share = 0  # type: ignore[assignment]
    assert (classifier.logits(images) - with_tokens).abs().max() > 1e-3
    for format in ("onnx", "torch"):
        found = FORMATS[format].read(runs / "lvvit" / format)(images)
        torch.testing.assert_close(found, with_tokens, atol=1e-5, rtol=1e-5)


def test_the_card(exported: dict[str, Exported], runs: Path, photos: Path) -> None:
    for format in FORMATS:
        card = (runs / "vit" / format / "README.md").read_text()
        top1 = evaluate_run(runs / "vit")["top1"]
        for line in (
            f"library_name: {format}",
            "# Model card for vit",
            f"- **Model:** {MODELS['vit']}",
            "- **Data:** photos, 16 training images",
            "  - name: mine",
            "  - epochs: 2",
            "  - target: tl_align",
            f"  - top-1: {top1:.2f} %",
            "  - top-5: ",
            "  - mean: (0.3, 0.4, 0.5)",
            "- **Classes:** 10: barred square, barred triangle, ",
        ):
            assert line in card
    for folder in (runs / "vit" / "timm", runs / "vit" / "onnx"):
        for file in folder.iterdir():
            assert str(photos.parent).encode() not in file.read_bytes()
            assert str(runs).encode() not in file.read_bytes()


def test_what_is_exported_can_be_exported(runs: Path, exported: dict[str, Exported], tmp_path: Path) -> None:
    result = lf.export(exported["swin timm"].path, out=tmp_path / "again")
    assert result.images == "24 sample images"
    for name in ("config.json", "model.safetensors"):
        assert (result.path / name).read_bytes() == (runs / "swin" / "timm" / name).read_bytes()
    classes = json.loads((result.path / "config.json").read_text())["label_names"]
    assert (result.path / "config.json").read_text().count(classes[0]) == 1


def test_a_classifier_stays_as_it_is(runs: Path, tmp_path: Path) -> None:
    """At another size, whose positions are interpolated."""
    classifier = lf.load(runs / "vit", image_size=96)
    classifier.model.train()
    lf.export(classifier, out=tmp_path / "larger")
    assert classifier.model.training
    assert classifier.model.pretrained_cfg["label_names"] == list(classifier.classes)  # type: ignore[index]
    again = timm.create_model(f"local-dir:{tmp_path / 'larger'}", pretrained=True).eval()
    images = torch.randn(2, 3, 96, 96)
    assert torch.equal(again(images), classifier.model.eval()(images))
    assert timm.data.resolve_model_data_config(again)["input_size"] == (3, 96, 96)


def test_the_last_weights_come_without_metrics(runs: Path, tmp_path: Path) -> None:
    run = Path(copytree(runs / "vit", tmp_path / "run", ignore=lambda *_: ["timm", "onnx", "torch"]))
    forget_file(run / "model.safetensors")
    path = lf.export(run).path
    assert "Metrics" not in (path / "README.md").read_text()
    assert (path / "model.safetensors").read_bytes() == (run / "last.safetensors").read_bytes()


def test_data_that_is_gone(runs: Path, photos: Path, tmp_path: Path) -> None:
    moved = photos.rename(photos.with_name("moved"))
    try:
        assert lf.export(runs / "vit", out=tmp_path / "out").images == "24 sample images"
    finally:
        moved.rename(photos)


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda model: lambda images: -model(images), "the exported torch model disagrees with vit and was discarded"),
        (lambda model: lambda images: model(images).roll(1, 0), "disagrees"),
        (
            lambda model: lambda images: model(images.reshape(2, 3, 64, 64)),
            "exported to .* as torch: shape",
        ),
    ],
)
def test_what_disagrees_is_not_kept(
    read: Any, message: str, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = lf.load(runs / "vit").model
    monkeypatch.setattr(torch_program, "read", lambda folder: read(model))
    with pytest.raises(ValueError, match=message) as error:
        lf.export(runs / "vit", "torch", tmp_path / "out")
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


class TestHub:
    def test_offline_it_says_the_command(
        self, runs: Path, exported: dict[str, Exported], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def push(*args: object, **options: object) -> None:
            raise ConnectionError("no network\n")

        monkeypatch.setattr(timm_folder, "push_to_hf_hub", push)
        result = lf.export(runs / "vit", out=tmp_path / "my photos", repo="me/photos")
        how = f"hf upload me/photos '{tmp_path / 'my photos'}'"
        assert result.hub == f"not pushed: no network\nwhen you are online and logged in (hf auth login): {how}"
        assert {file.name for file in result.path.iterdir()} == {"config.json", "model.safetensors", "README.md"}
        assert '"hf-hub:me/photos"' in (result.path / "README.md").read_text()

    def test_what_timm_pushes_is_what_was_compared(
        self, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pushed = {}

        class Api:
            def __init__(self, **_: object) -> None: ...

            def create_repo(self, repo: str, **_: object) -> SimpleNamespace:
                return SimpleNamespace(repo_id=repo)

            def file_exists(self, **_: object) -> bool:
                return False

            def upload_folder(self, folder_path: str, **_: object) -> str:
                pushed.update({file.name: file.read_bytes() for file in Path(folder_path).iterdir()})
                return "https://hub/me/photos"

        monkeypatch.setattr("timm.models._hub.HfApi", Api)
        result = lf.export(runs / "vit", out=tmp_path / "photos", repo="me/photos")
        assert result.hub == "pushed to https://hub/me/photos"
        assert pushed == {file.name: file.read_bytes() for file in result.path.iterdir()}


def test_timm_models(tmp_path: Path) -> None:
    classifier = lf.load("test_vit(depth=1)", "random")
    result = lf.export(classifier, out=tmp_path / "vit")
    assert (result.images, result.difference) == ("24 sample images", 0)
    card = (result.path / "README.md").read_text()
    assert "- **Classes:** 1000: tench, goldfish, " in card
    assert "Recipe" not in card
    with pytest.raises(ValueError, match="this model is not the folder of a run: say where to write"):
        lf.export(replace(classifier))
    rmtree(result.path)


@pytest.mark.parametrize(("model", "size"), [("resnet18.a1_in1k", 0), ("resnet18.a1_in1k", 96), ("test_vit", 96)])
def test_timm_models_keep_how_they_were_loaded(model: str, size: int, tmp_path: Path) -> None:
    """Another size than the weights' own, or their test size, which is not the size that they were trained with."""
    classifier = lf.load(f"{model}=random", image_size=size)
    result = lf.export(classifier, out=tmp_path / "out")
    again = timm.create_model(f"local-dir:{result.path}", pretrained=True)
    expected = {name: getattr(classifier.preprocessing, name) for name in ("crop_pct", "interpolation", "mean", "std")}
    found = timm.data.resolve_model_data_config(again)
    assert {name: type(value)(found[name]) for name, value in expected.items()} == expected
    assert found["input_size"] == (3, classifier.preprocessing.size, classifier.preprocessing.size)
    assert lf.load(result.path).preprocessing == classifier.preprocessing


def test_the_card_has_no_metrics_of_other_weights(runs: Path, tmp_path: Path) -> None:
    card = lf.export(runs / "vit", out=tmp_path / "best").path / "README.md"
    assert "top-1" in card.read_text()
    other = lf.load(runs / "vit")
    with torch.no_grad():
        next(other.model.parameters()).add_(0.01)
    weights = tmp_path / "other" / "model.safetensors"
    weights.parent.mkdir()
    save_file(other.model.state_dict(), weights)
    card = lf.export(runs / "vit", out=tmp_path / "card", weights=str(weights)).path / "README.md"
    assert "top-1" not in card.read_text()


@pytest.mark.parametrize("model", OWN)
def test_labelflows_own_models_take_any_number_of_images(model: str, tmp_path: Path) -> None:
    result = lf.export(lf.load(model, "random"), "torch", tmp_path / "out")
    assert (result.agreement, result.difference < 1e-5) == (1, True)
