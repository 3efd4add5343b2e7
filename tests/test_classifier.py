"""One classifier, seen in one way: by timm, by every command, and by the run that trained it."""

import json
from dataclasses import replace
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from timm.data import ImageNetInfo, create_transform, resolve_model_data_config
from torch import nn
from torch.testing import assert_close

from families import FAMILIES, SOME
from helpers import sharpen
from labelflow import classifier as module
from labelflow.analysis.images import evaluation_data, images_of
from labelflow.classifier import Classifier, load, timm_config
from labelflow.data import Data, Preprocessing, open_source
from labelflow.data.imagenet import title, wordnet_names
from labelflow.engine.run import Run
from labelflow.labels.annotation import annotator_preprocessing
from labelflow.recipes import find
from labelflow.robustness.datasets import open_dataset
from labelflow.robustness.images import CLEAN, PerturbedImages
from labelflow.robustness.models import load_models
from labelflow.tasks import evaluate_run, load_run, train_run

CPU = torch.device("cpu")
TINY = "vit_tiny_patch16_224(img_size=32, patch_size=8, embed_dim=24, depth=1, num_heads=2, num_classes=3)"
CLIP = "vit_base_patch16_clip_384(embed_dim=24, depth=1, num_heads=2)"
# As timm publishes them: size, crop_pct, crop_mode, interpolation, the mean of red
PUBLISHED = {
    "tf_efficientnet_lite0": (224, 0.875, "center", "bicubic", 0.5),
    "mobilenetv4_conv_small_035": (256, 0.95, "center", "bicubic", 0.5),  # trained at 224
    CLIP: (384, 1.0, "squash", "bicubic", 0.48145466),
    "resnet10t(num_classes=5)": (224, 0.95, "center", "bicubic", 0.485),  # trained at 176
    "test_vit(img_size=48)": (48, 0.95, "center", "bicubic", 0.5),
}

NOT_IN_JSON = ("coat lite", "hiera", "visformer")  # arguments that JSON does not have, oblong images
IN_JSON = [name for name in SOME if isinstance(FAMILIES[name][0], str) and name not in NOT_IN_JSON]


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Neither square nor of any model's size."""
    path = tmp_path_factory.mktemp("photo") / "a" / "photo.png"
    path.parent.mkdir()
    coarse = np.random.default_rng(0).integers(0, 256, (9, 13, 3), np.uint8)
    Image.fromarray(coarse).resize((520, 360), Image.Resampling.BICUBIC).save(path)
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nothing of how it sees images is the default."""
    recipe = find("quickstart").recipe.change(
        model="vit_tiny_patch16_224(patch_size=8, embed_dim=24, depth=2, num_heads=3)",
        source="world(train=64, val=40)",
        image_size=32,
        test_crop=0.7,
        interpolation="bilinear",
        mean=(0.3, 0.4, 0.5),
        std=(0.1, 0.2, 0.3),
        batch=16,
        micro_batch=16,
        epochs=3,
        warmup_epochs=0,
        lr=0.003,
        lr_batch=0,
        workers=0,
    )
    folder = tmp_path_factory.mktemp("classifier") / "run"
    train_run(recipe, folder, resume=False, quiet=True)
    return folder


@pytest.fixture(scope="module")
def imagenet() -> Classifier:
    return load("test_vit", "random")


def weights_of(text: str, path: Path, num_classes: int = 3) -> Path:
    name, arguments = module.parse(text)
    save_file(timm.create_model(name, **{**arguments, "num_classes": num_classes}).state_dict(), path)
    return path


@pytest.mark.parametrize("name", PUBLISHED)
def test_models_see_as_timm_publishes(name: str) -> None:
    own = load(name, "random").preprocessing
    assert (own.size, own.crop_pct, own.crop_mode, own.interpolation, own.mean[0]) == PUBLISHED[name]


@pytest.mark.parametrize("name", [*list(PUBLISHED)[:3], "run"])
def test_every_command_sees_what_timm_sees(name: str, run: Path, photo: Path) -> None:
    text, weights = (str(run), "") if name == "run" else (name, "random")
    classifier = load(text, weights)
    config = resolve_model_data_config(classifier.model, use_test_size=True)
    seen = create_transform(**config)(Image.open(photo))
    with torch.no_grad():
        logits = classifier.model(seen[None])
    assert torch.equal(classifier.logits([photo]), logits)  # predict, and the Python API
    (shown,) = images_of(classifier, 1, [photo])  # figure, report
    assert torch.equal(shown.image, seen)
    (asked,) = load_models([text], CPU, weights=weights)  # robust
    pictures = PerturbedImages(
        open_dataset(Data(source=str(photo.parents[1])), from_run=False, classes=()), asked.preprocessing, (CLEAN,), 0
    )
    levels = pictures[0, 0].levels.float() / 255
    assert_close(asked.logits(levels), logits, rtol=1e-3, atol=1e-5)
    whole = annotator_preprocessing(classifier.preprocessing, "whole").transform()(
        Image.open(photo)
    )  # annotate: its own crop
    assert whole.shape == seen.shape
    assert_close(whole.mean(), seen.mean(), rtol=0, atol=0.3)


class TestRuns:
    def test_timm_alone_sees_and_answers_as_a_run_does(self, run: Path) -> None:
        """As docs/command-line.md tells: its folder is one of timm's."""
        model = timm.create_model(f"local-dir:{run}", pretrained=True).eval()
        config = resolve_model_data_config(model)
        assert config == {
            "input_size": (3, 32, 32),
            "interpolation": "bilinear",
            "mean": [0.3, 0.4, 0.5],
            "std": [0.1, 0.2, 0.3],
            "crop_pct": 0.7,
            "crop_mode": "center",
        }
        transform, classifier = create_transform(**config), load(run)
        source = open_source(evaluation_data(classifier), "val")
        samples = [source.load(index) for index in range(len(source))]
        with torch.no_grad():
            logits = model(torch.stack([transform(image) for image, _ in samples]))
        assert torch.equal(classifier.logits([image for image, _ in samples]), logits)
        right = logits.argmax(1) == torch.tensor([label for _, label in samples])
        top1 = evaluate_run(run)["top1"]
        assert top1 == pytest.approx(100 * float(right.float().mean()))

    def test_the_record_is_timms(self, run: Path) -> None:
        config = Run(run).config()
        cfg, names = config["pretrained_cfg"], config["label_names"]
        assert (config["architecture"], config["num_classes"], len(names)) == ("vit_tiny_patch16_224", 10, 10)
        assert (cfg["num_classes"], cfg["classifier"]) == (10, "head")
        assert cfg["first_conv"] == "patch_embed.proj"
        assert not cfg.keys() & {"url", "hf_hub_id", "test_input_size", "test_crop_pct"}  # those of other weights
        assert timm.models.PretrainedCfg(**cfg).fixed_input_size
        assert json.dumps(config).count(json.dumps(names)) == 1  # and timm finds them there
        for model in (load(run).model, timm.create_model(f"local-dir:{run}")):
            assert model.pretrained_cfg["label_names"] == names  # type: ignore[index]

    def test_which_weights(self, run: Path, tmp_path: Path) -> None:
        best, last = load(run), load(run, "last")
        assert (best.name, best.folder, best.trained) == ("run", run, True)
        assert best.architecture == "vit_tiny_patch16_224(patch_size=8, embed_dim=24, depth=2, num_heads=3)"
        assert best.weights.startswith("model.safetensors sha256:")
        assert last.weights.startswith("last.safetensors sha256:")
        stored = {name: 2 * value for name, value in load_file(run / "last.safetensors").items()}
        save_file(stored, tmp_path / "mine.safetensors")
        mine = load(run, str(tmp_path / "mine.safetensors"))
        for name, value in mine.model.state_dict().items():
            assert torch.equal(value, 2 * last.model.state_dict()[name])

    def test_timm_takes_the_weights_that_labelflow_takes(
        self, run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The best ones, or the last before there is an evaluation, though other files lie beside them."""
        folder = Path(copytree(run, tmp_path / "run", ignore=ignore_patterns("checksums.json")))
        weights = load_file(folder / "last.safetensors")
        save_file({name: value + 1 for name, value in weights.items()}, folder / "model.safetensors")
        for offset in (1, 0):
            model = timm.create_model(f"local-dir:{folder}", pretrained=True)
            for name, value in load(folder).model.state_dict().items():
                assert torch.equal(model.state_dict()[name], value)
                assert torch.equal(value, weights[name] + offset)
            (folder / "model.safetensors").unlink(missing_ok=True)
        assert not [record for record in caplog.records if record.levelname == "WARNING"]

    def test_what_is_exported_of_a_run_loads_like_it(self, run: Path, tmp_path: Path, photo: Path) -> None:
        for name in ("config.json", "model.safetensors"):
            (tmp_path / name).write_bytes((run / name).read_bytes())
        classifier, own = load(tmp_path), load(run)
        assert (classifier.classes, classifier.preprocessing) == (own.classes, own.preprocessing)
        assert torch.equal(classifier.logits([photo]), own.logits([photo]))
        assert classifier.folder is None

    def test_without_weights_or_of_another_task(self, run: Path, tmp_path: Path) -> None:
        for name in ("config.json", "recipe.json"):
            (tmp_path / name).write_bytes((run / name).read_bytes())
        with pytest.raises(ValueError, match="has no weights yet; they are written with the first checkpoint"):
            load(tmp_path)
        config = {"task": "segment", "model": "vit", "label_names": ["a"]}
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match=r"is not the run of a classifier: its config\.json has no pretrained_cfg"):
            load(tmp_path)
        with pytest.raises(ValueError, match=r"is the run of a classifier: load it with labelflow\.load"):
            load_run(run)
        (tmp_path / "empty").mkdir()
        with pytest.raises(ValueError, match=r"is not a run: it has no config\.json"):
            load(tmp_path / "empty")

    def test_at_another_size(self, run: Path) -> None:
        larger = load(run, image_size=48)
        assert larger.preprocessing == replace(load(run).preprocessing, size=48)
        assert larger.model.pos_embed.shape[1] == 37  # type: ignore[union-attr]
        assert resolve_model_data_config(larger.model)["input_size"] == (3, 48, 48)
        assert larger.probabilities(torch.zeros(2, 3, 48, 48)).sum(1).tolist() == pytest.approx([1, 1])


@pytest.mark.parametrize("family", IN_JSON)
def test_timm_makes_every_family_again(family: str, tmp_path: Path) -> None:
    name, arguments, (size, _) = FAMILIES[family]
    assert isinstance(name, str)
    model = sharpen(timm.create_model(name, **arguments))
    classes = [str(number) for number in range(model.num_classes)]
    config = timm_config(model, name, arguments, classes, Preprocessing(size, crop_pct=0.8))
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({key: value.clone() for key, value in model.state_dict().items()}, tmp_path / "model.safetensors")
    again = timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
    assert_close(again.state_dict(), model.state_dict(), rtol=0, atol=0)
    config = resolve_model_data_config(again)
    assert (tuple(config["input_size"]), config["crop_pct"]) == ((3, size, size), 0.8)
    assert again.pretrained_cfg["label_names"] == classes


class TestWeightsOfTimm:
    def test_pretrained_unless_said_otherwise(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        asked = []

        def create(name: str, start: str, **arguments: Any) -> nn.Module:
            asked.append(start)
            return timm.create_model(name, **arguments)

        monkeypatch.setattr(module, "create", create)
        file = str(weights_of("test_vit", tmp_path / "a=b.safetensors", 1000))
        for name in ("test_vit", "test_vit=random", "test_vit=packaged", f"test_vit={file}"):
            load(name)
        assert asked == ["pretrained", "", "packaged", file]

    def test_random_weights_are_the_same_each_time_and_said(self) -> None:
        state = torch.random.get_rng_state()
        one, other = load(TINY, "random"), load(f"{TINY}=random")
        assert torch.equal(torch.random.get_rng_state(), state)
        assert one.label == other.label == f"{TINY} (random weights)"
        assert not one.trained
        assert one.key == other.key
        images = torch.rand(2, 3, 32, 32)
        assert torch.equal(one.logits(images), other.logits(images))

    def test_none_of_timms(self) -> None:
        with pytest.raises(ValueError, match="timm has no weights of pvt_tiny; give a checkpoint file, pvt_tiny=FILE"):
            load("pvt_tiny")
        with pytest.raises(ValueError, match="timm has no model 'resnet50x'"):
            load("resnet50x")
        with pytest.raises(ValueError, match="runs/none is not a run: there is no such folder"):
            load("runs/none")
        with pytest.raises(ValueError, match="does not take square colour images"):
            load("vit_tiny_patch16_224(in_chans=1)", "random")

    def test_a_file_says_how_many_classes_and_the_data_which(self, tmp_path: Path) -> None:
        file = str(weights_of(TINY, tmp_path / "three.safetensors"))
        named = load(TINY.replace(", num_classes=3", ""), file, classes=("a", "b", "c"))
        assert (named.classes, named.columns(("c", "a"))) == (("a", "b", "c"), [2, 0])
        assert named.weights.startswith("three.safetensors sha256:")
        unnamed = load(f"{TINY}={file}")
        assert unnamed.classes == ()
        assert unnamed.predict(torch.zeros(1, 3, 32, 32), top=9)[0].label.startswith("class ")
        with pytest.raises(ValueError, match="has 3 classes, the data 2, and nothing says which are which"):
            unnamed.columns(("a", "b"))
        other = str(weights_of("test_vit", tmp_path / "other.safetensors"))
        assert load(f"{TINY}={file}").key == unnamed.key != load(f"test_vit={other}").key


class TestClasses:
    def test_the_columns_of_the_datas_classes(self, imagenet: Classifier) -> None:
        info = ImageNetInfo()
        assert imagenet.classes == tuple(info.label_names())
        assert imagenet.columns(info.label_names()) is None
        assert imagenet.columns(["n02099601", "n01440764"]) == [207, 0]
        assert imagenet.columns(info.label_descriptions()) is None  # Hugging Face's names
        assert imagenet.columns([str(place) for place in range(1000)]) is None
        own = replace(imagenet, classes=tuple(info.label_descriptions()))
        assert own.columns(["n02099601", "n01440764"]) == [207, 0]
        with pytest.raises(
            ValueError, match="2 of the data's 3 classes are unknown to test_vit: cat, dog; it knows 1000"
        ):
            imagenet.columns(["cat", "n01440764", "dog"])

    def test_names_for_people(self, imagenet: Classifier) -> None:
        assert (imagenet.class_name(207), title("striped disc")) == ("golden retriever", "striped disc")
        assert replace(imagenet, classes=()).class_name(7) == "class 7"
        assert imagenet.class_name(134) == "crane (n02012849)"  # 517 is a crane, too
        assert len({imagenet.class_name(column) for column in range(1000)}) == 1000
        assert wordnet_names(("a", "b")) == ("a", "b")

    def test_models_without_a_classifier_have_no_names(self) -> None:
        assert load("test_vit(num_classes=0)", "random").classes == ()


def test_tensors_pictures_and_files_get_the_same_answers(run: Path, photo: Path) -> None:
    classifier = load(run)
    tensor = classifier.preprocess([photo, photo])
    assert tensor.shape == (2, 3, 32, 32)
    likeliest = [row.top for row in classifier.predict(tensor, top=3)]
    for same in ([Image.open(photo), str(photo)], [photo.parent, tensor[0]], [f"{photo.parent}/*.p*g", tensor[:1]]):
        assert [row.top for row in classifier.predict(same, top=3)] == likeliest
    assert classifier.predict(photo)[0].file == str(photo)
    assert [len(row.top) for row in classifier.predict(photo.parent, top=99)] == [10]
    probabilities = classifier.probabilities(tensor)[0]
    assert [len(row) for row in likeliest] == [3, 3]
    for rank, (name, value) in enumerate(likeliest[0]):
        assert value == probabilities.sort(descending=True).values[rank]
        assert probabilities[classifier.classes.index(name)] == value
    grey = Image.open(photo).convert("L")
    assert classifier.logits([grey]).shape == (1, 10)


def test_images_are_read_in_batches_and_nothing_is_said(
    run: Path, photo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    classifier, sizes = load(run), list[int]()
    handle = classifier.model.register_forward_pre_hook(lambda model, images: sizes.append(len(images[0])))
    try:
        rows = classifier.predict([photo] * 5, batch=2, quiet=True)
    finally:
        handle.remove()
    assert (sizes, len(rows)) == ([2, 2, 1], 5)
    assert capsys.readouterr() == ("", "")


def test_what_cannot_be_predicted(run: Path, photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    classifier, bad = load(run), tmp_path / "bad.png"
    bad.write_text("no image")
    for images, message in (
        ("none.png", r"there is no file or folder none\.png"),
        ([], "there are no images"),
        (tmp_path / "no*", "no image matches"),
        ([photo, bad], r"cannot read .*bad\.png: .* \(none was allowed\)"),
    ):
        with pytest.raises(ValueError, match=message):
            classifier.predict(images)
    with pytest.raises(ValueError, match=r"cannot read .*bad\.png"):
        classifier.logits([photo, bad])
    for wrong in ({"top": 0}, {"batch": 0}):
        with pytest.raises(ValueError, match=r"must be at least 1, not 0"):
            classifier.predict(photo, **wrong)
    capsys.readouterr()
    assert [row.file for row in classifier.predict([bad, photo], skip_unreadable=1)] == [str(photo)]
    assert capsys.readouterr().err.startswith(f"skipped {bad}: ")
