"""A teacher beside a run: what it sees, what it leaves alone, and what is refused."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor
from torch.testing import assert_close
from torchvision.transforms.functional import pil_to_tensor

import labelflow as lf
from helpers import box_mix
from labelflow import classifier
from labelflow.chance import generator
from labelflow.classifier import Classifier, load
from labelflow.cli import main
from labelflow.data import Data, open_source
from labelflow.data.geometry import Geometry
from labelflow.data.normalise import Normalise
from labelflow.engine import Run, Training
from labelflow.labels import Store
from labelflow.labels.annotation import annotator_preprocessing
from labelflow.labels.sampling import label_view
from labelflow.loss import total
from labelflow.tasks import Classification, Recipe
from labelflow.tasks.teacher import Teacher

DATA = "world(train=24, val=8)"
VIT = "vit_tiny_patch16_224(patch_size=16, embed_dim=24, depth=2, num_heads=3)"
CNN = "test_resnet"  # timm's smallest
SHORT = [
    "--data",
    DATA,
    "--batch",
    "8",
    "--micro-batch",
    "4",
    "--epochs",
    "1",
    "--warmup-epochs",
    "0",
    "--workers",
    "0",
]


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CNN with batch norms that sees 64 pixels in colours of its own."""
    out = tmp_path_factory.mktemp("teacher") / "run"
    colours = ["--mean", "0.5", "0.4", "0.3", "--std", "0.5", "0.25", "0.3", "--test-crop", "1"]
    how = ["--model", CNN, "--image-size", "64", "--target", "plain", *colours]
    assert run("train", "small_vit_cutmix", *SHORT, *how, "--out", out) == 0
    return out


@pytest.fixture(scope="module")
def known(teacher: Path) -> Classifier:
    return load(teacher)


def recipe(teacher: Path | str, target: str = "distill", **settings: object) -> Recipe:
    data = Data(source=DATA, image_size=64, workers=0, test_crop=1.0, auto_augment="", erasing=0.0, color_jitter=0.0)
    training = Training(epochs=2, batch=8, micro_batch=8, warmup_epochs=0, save_updates=1)
    return Recipe(model=VIT, teacher=str(teacher), target=target, data=data, training=training).change(**settings)


def pictures(size: int = 64) -> list[Image.Image]:
    source = open_source(Data(source=DATA), "train")
    return [source.load(index)[0].resize((size, size)) for index in range(4)]


def as_bytes(images: list[Image.Image]) -> Tensor:
    return torch.stack([pil_to_tensor(image) for image in images])


def as_student(images: Tensor, data: Data) -> Tensor:
    return Normalise(data.mean, data.std)(images)


def batches(task: Classification) -> Iterator[object]:
    for read in task.train_batches(updates=3, first_update=0, rank=0, processes=1):
        yield read.to(torch.device("cpu"))


@pytest.mark.parametrize("at", ["image", "tokens"])
def test_it_sees_the_mixed_view_as_it_was_trained_to(teacher: Path, known: Classifier, at: str) -> None:
    wanted = recipe(teacher)
    pixels = as_bytes(pictures())
    share = box_mix(pixels.float()).share.round()  # whole pixels, so that what is mixed is an image
    mix = lf.Mix(torch.tensor([2, 3, 1, 0]), share, at=at)
    mixed = torch.where(share.bool(), pixels, pixels[mix.partner])
    expected = known.logits([Image.fromarray(one.permute(1, 2, 0).numpy()) for one in mixed])
    beside = Teacher(wanted, known.classes, "logits", annotates=False)
    found = beside.taught(as_student(pixels, wanted.data), mix)
    assert_close(found.logits, expected, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(known.logits(as_student(mixed, wanted.data)), expected, atol=1e-2)  # in other colours
    features = Teacher(wanted, known.classes, "features", annotates=False).taught(as_student(pixels, wanted.data), mix)
    assert_close(known.model.get_classifier()(features.features), expected, atol=1e-4, rtol=1e-4)


def test_it_sees_its_own_size(teacher: Path, known: Classifier) -> None:
    small = recipe(teacher).change(image_size=32)
    images, mix = as_bytes(pictures(32)), lf.NoMix()(torch.zeros(4, 3, 32, 32))
    resized = [picture.resize((64, 64), Image.Resampling.BICUBIC) for picture in pictures(32)]
    found = Teacher(small, known.classes, "logits", False).taught(as_student(images, small.data), mix)
    assert_close(found.logits, known.logits(resized), atol=2e-2, rtol=0)  # Pillow rounds to bytes
    own = Teacher(small.change(teacher_size=32), known.classes, "logits", False)
    seen = load(teacher, image_size=32).logits(pictures(32))
    assert_close(own.taught(as_student(images, small.data), mix).logits, seen, atol=1e-4, rtol=1e-4)


def test_an_imagenet_classifier_teaches_a_part_of_its_classes() -> None:
    wanted = recipe("test_resnet=random", teacher_size=32, mean=(0.5,) * 3, std=(0.5,) * 3)
    classes = ["n03888257", "n01440764", "n02979186"]
    found = Teacher(wanted, classes, "logits", annotates=True)
    columns = [load("test_resnet=random").classes.index(name) for name in classes]
    images, mix = torch.randn(2, 3, 32, 32), lf.NoMix()(torch.zeros(2, 3, 32, 32))
    with torch.no_grad():
        expected = load("test_resnet=random").model(images)[:, columns]
    assert_close(found.taught(images, mix).logits, expected, atol=1e-5, rtol=1e-5)


def test_the_run_and_the_output_name_the_exact_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classifier, "create", lambda name, _, **arguments: timm.create_model(name, **arguments))
    told: list[str] = []
    wanted = recipe(VIT, "distill(kind='features')", teacher_size=64)
    task = Classification(wanted, tell=told.append)
    exact = VIT.replace("vit_tiny_patch16_224", "vit_tiny_patch16_224.augreg_in21k_ft_in1k")
    assert task.config["teacher_model"] == exact
    assert told[-2] == f"teacher: {exact}, weights: pretrained"
    assert told[-1].startswith("vit_tiny_patch16_224.augreg_in21k_ft_in1k was trained on ImageNet-21k, beyond ImageNet")


def test_bf16_is_the_student_s(teacher: Path, known: Classifier) -> None:
    images = as_student(as_bytes(pictures()), recipe(teacher).data)
    mix = lf.NoMix()(images)
    exact, rounded = (
        Teacher(recipe(teacher).change(precision=precision), known.classes, "logits", False).taught(images, mix).logits
        for precision in ("no", "bf16")
    )
    colours = Teacher(recipe(teacher), known.classes, "logits", False).see(images)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = known.model.to(memory_format=torch.channels_last)(colours)
    assert rounded.dtype == torch.float32
    assert torch.equal(rounded, expected.float())
    assert not torch.equal(rounded, exact)
    assert_close(rounded, exact, atol=0.1, rtol=0.1)


@pytest.mark.parametrize("kind", ["soft", "features"])
def test_it_is_left_alone(teacher: Path, known: Classifier, kind: str) -> None:
    """No gradient, no statistics, no part of what is trained; it does not run in evaluations."""
    task = Classification(recipe(teacher, f"distill(kind='{kind}')"))
    task.student.train()
    assert not task.teacher.model.training
    before = {name: value.clone() for name, value in task.teacher.model.state_dict().items()}
    total(task.terms(task.student, next(batches(task)), generator(0))).backward()
    assert all(parameter.grad is None for parameter in task.teacher.model.parameters())
    assert all(parameter.grad is not None for parameter in task.student.parameters())  # or DDP would wait
    assert all(torch.equal(before[name], value) for name, value in task.teacher.model.state_dict().items())
    own = {name for name in task.student.state_dict() if not name.startswith("model.")}
    assert own == ({"projection.weight", "projection.bias"} if kind == "features" else set())
    task.teacher.model.forward = None
    task.measure(task.student.eval(), next(iter(task.eval_batches(0, 1))).to(torch.device("cpu")))


def test_the_student_starts_as_without_a_teacher(teacher: Path) -> None:
    taught, alone = Classification(recipe(teacher)), Classification(recipe("", "plain"))
    pairs = zip(taught.student.parameters(), alone.student.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_online_labels_are_the_store_s_where_views_are_the_annotator_s(teacher: Path, tmp_path: Path) -> None:
    """The whole image, in its size and colours: to the store's 16 bits."""
    assert run("annotate", DATA, "--model", teacher, "--workers", "0", "--out", tmp_path / "labels") == 0
    store, source = Store(tmp_path / "labels"), open_source(Data(source=DATA), "train")
    task = Classification(recipe(teacher, "token_label"))
    how = annotator_preprocessing(load(teacher).preprocessing, "whole")
    images = torch.stack([how.transform(normalize=False)(source.load(index)[0]) for index in range(8)])
    found = task.teacher.labels(as_student(images, task.recipe.data), task.student)
    for index in range(8):
        stored = label_view(store[source.key(index)], Geometry((64, 64)), (4, 4), 10)
        assert_close(found.tokens.dense(10)[index], stored.tokens.dense(10)[0], atol=1e-3, rtol=0)
        assert_close(found.image.dense(10)[index], stored.image.dense(10)[0], atol=1e-3, rtol=0)


def test_online_labels_are_mixed_as_images_are(teacher: Path) -> None:
    """The annotator sees images before they are mixed; the target mixes its labels."""
    task = Classification(recipe(teacher, "relabel", mixer="mixup(alpha=1)", smoothing=0.0))
    batch = next(batches(task))
    mix = task.mixer(batch.images, generator(0))
    labels = task.teacher.labels(batch.images, task.student).image.dense(10)
    logits = task.student.eval()(mix.apply(batch.images)).logits
    expected = -(mix.blend(labels) * logits.log_softmax(1)).sum(1).mean()
    assert_close(total(task.terms(task.student, batch, generator(0))), expected)


TARGET = "distill(kind='features', target='token_label')"


def train(teacher: Path | str, out: Path, target: str = TARGET, *more: str) -> int:
    settings = ["--model", VIT, "--mixer", "cutmix", "--target", target, "--teacher", teacher, "--out", out]
    return run("train", "small_vit_cutmix", *SHORT, *settings, "--save-updates", "1", *more)


def test_a_run_from_the_command_line(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(teacher, tmp_path / "whole") == 0
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert {name for name in lines[0] if "loss_" in name} == {"loss_class", "loss_tokens", "loss_teacher"}
    last = sorted((tmp_path / "whole" / "checkpoints").iterdir())[-1]
    assert set(load_file(last / "model.safetensors")) == set(load(tmp_path / "whole").model.state_dict())
    heads = {"projection.weight", "projection.bias", "token_head.weight", "token_head.bias"}
    assert set(load_file(last / "heads.safetensors")) == heads
    assert Run(tmp_path / "whole").config()["teacher"] == load(teacher).key

    def killed(self: Classification, *args: object, **options: object) -> Iterator[object]:
        for number, batch in enumerate(read(self, *args, **options)):
            if number == 3:
                raise RuntimeError("killed")
            yield batch

    read = Classification.train_batches
    with monkeypatch.context() as patch:
        patch.setattr(Classification, "train_batches", killed)
        with pytest.raises(RuntimeError, match="killed"):
            train(teacher, tmp_path / "halves")
    assert train(teacher, tmp_path / "halves", TARGET, "--resume") == 0
    for name in ("model", "heads"):
        one, other = (
            load_file(sorted((tmp_path / part).glob(f"checkpoints/*/{name}.safetensors"))[-1])
            for part in ("whole", "halves")
        )
        assert all(torch.equal(one[key], other[key]) for key in one)

    config = Run(tmp_path / "whole").config()
    Run(tmp_path / "whole").write("config.json", {**config, "teacher": "another"})
    capsys.readouterr()
    assert train(teacher, tmp_path / "whole", TARGET, "--resume") == 2
    assert "was started with another teacher" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "arguments", "message"),
    [
        ("distill", ["--teacher", ""], "the target distill needs a teacher: --teacher RUN"),
        ("token_label", ["--teacher", ""], "needs dense labels: make them with labelflow annotate"),
        ("tl_align", [], "the target tl_align has no use for --teacher; distill, for example, does"),
        ("token_label", ["--labels", "labels"], "not from both; leave out one"),
        ("distill", ["--labels", "labels"], "the target distill does not use --labels"),
        ("distill", ["--teacher", "test_resnet=random"], "10 of the data's 10 classes are unknown to test_resnet"),
        ("distill", ["--teacher", "runs/nothing"], "runs/nothing is not a run: there is no such folder"),
        ("distill", ["--teacher", "resnet_eighteen=random"], "timm has no model 'resnet_eighteen'"),
        ("distill", ["--teacher-size", "-1"], "teacher_size must be at least 0, not -1"),
        ("token_label", ["--teacher-top", "0"], "teacher_top must be at least 1, not 0"),
    ],
)
def test_bad_input(
    teacher: Path,
    tmp_path: Path,
    target: str,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    capsys.readouterr()
    assert train(teacher, tmp_path / "run", target, *arguments) == 2
    told = capsys.readouterr().err
    assert message in told
    assert len(told.splitlines()) == 1
    assert not (tmp_path / "run" / "recipe.json").exists()


def test_answers_of_several_labels_do_not_teach(teacher: Path, known: Classifier, tmp_path: Path) -> None:
    shutil.copytree(teacher, tmp_path / "several")
    Run(tmp_path / "several").write("config.json", {**Run(teacher).config(), "multi_label": True})
    with pytest.raises(ValueError, match="was trained on images with several labels, but those of"):
        Teacher(recipe(tmp_path / "several"), known.classes, "logits", annotates=False)
    Teacher(recipe(tmp_path / "several"), known.classes, "features", annotates=False)


def test_a_segmenter_does_not_teach(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "segmenter").mkdir()
    Run(tmp_path / "segmenter").write("config.json", {"task": "segment"})
    assert train(tmp_path / "segmenter", tmp_path / "run", "distill") == 2
    assert "is not the run of a classifier" in capsys.readouterr().err
