"""Self-emerging token labels from start to end: the labeller's head outlives its run, and labels what the student sees
without its colours."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.testing import assert_close

import labelflow as lf
from labelflow.chance import generator
from labelflow.classifier import load
from labelflow.cli import main
from labelflow.data import Batch, Data
from labelflow.engine import Run, Training
from labelflow.files import list_file
from labelflow.loss import total
from labelflow.tasks import Classification, Recipe

DATA = "world(train=24, val=8)"
VIT = "vit_tiny_patch16_224(patch_size=8, embed_dim=24, depth=2, num_heads=3)"
LVVIT = "lvvit_t(embed_dim=24, depth=2, num_heads=3, stem_width=8, num_classes=10)"
SHORT = ["--data", DATA, "--model", VIT, "--image-size", 32, "--test-crop", 1, "--batch", 8, "--micro-batch", 4]
SHORT += ["--epochs", 1, "--warmup-epochs", 0, "--workers", 0, "--save-updates", 1, "--keep", 9, "--lr", 0.01]
CPU = torch.device("cpu")


def train(name: str, out: Path, *more: object) -> int:
    return main([str(part) for part in ("train", name, *SHORT, "--out", out, *more)])


@pytest.fixture(scope="module")
def labeller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("labeller") / "run"
    assert train("small_vit_stl_labeler", out, "--ema", 0.5) == 0
    return out


def recipe(teacher: object, target: str = "stl", **settings: Any) -> Recipe:
    data = Data(source=DATA, image_size=32, workers=0, erasing=0.5)
    training = Training(epochs=2, batch=8, micro_batch=8, warmup_epochs=0)
    return Recipe(model=VIT, teacher=str(teacher), target=target, data=data, training=training).change(**settings)


def first_batch(task: Classification) -> Batch:
    return next(task.train_batches(updates=1, first_update=0, rank=0, processes=1)).to(CPU)


def token_logits(run: Path, images: Tensor) -> Tensor:
    """What the labeller says of tokens, by hand: its head on what its blocks end with."""
    head = load_file(run / "heads.safetensors")
    with torch.no_grad():
        tokens = load(run).model.forward_features(images)[:, 1:]
        return tokens @ head["token_head.weight"].T + head["token_head.bias"]


def test_the_head_is_averaged_and_published_with_the_weights_it_belongs_to(labeller: Path) -> None:
    steps = Run(labeller).checkpoints()
    parts = [{file.stem: load_file(file) for file in step.glob("*.safetensors")} for step in steps]
    assert len(parts) == 3
    for before, now in pairwise(parts):
        for name, value in now["ema_heads"].items():
            assert_close(value, 0.5 * before["ema_heads"][name] + 0.5 * now["heads"][name])
            assert not torch.equal(value, now["heads"][name])
    assert_close(load_file(labeller / "last_heads.safetensors"), parts[-1]["ema_heads"])
    (best,) = [part for part in parts if same(part["ema"], load_file(labeller / "model.safetensors"))]
    assert same(best["ema_heads"], load_file(labeller / "heads.safetensors"))
    assert set(load_file(labeller / "model.safetensors")) == set(load(labeller).model.state_dict())


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("augment", ["workers", "device"])
def test_a_step_is_its_definition(labeller: Path, augment: str) -> None:
    """Labels of the view without its colours and its erased part, mixed as the images are, in the student's loss."""
    task = Classification(recipe(labeller, "stl(beta=0.5, labels='likeliest')", augment=augment))
    batch = first_batch(task)
    assert not torch.equal(batch.images, batch.spatial)
    hard = torch.eye(10)[token_logits(labeller, batch.spatial).argmax(-1)]
    mix = task.mixer(batch.images, generator(0))
    share = mix.share.unflatten(2, (4, 8)).unflatten(4, (4, 8)).mean((3, 5)).reshape(8, 16, 1)
    tokens = 0.9 * (share * hard + (1 - share) * hard[mix.partner]) + 0.1 / 10
    image = mix.blend(0.9 * torch.eye(10)[batch.labels] + 0.1 / 10)
    output = task.student.eval()(mix.apply(batch.images), mix)
    expected = -(image * output.logits.log_softmax(-1)).sum(-1).mean()
    expected = expected - 0.5 * (tokens * output.tokens.log_softmax(-1)).sum(-1).mean()
    assert_close(total(task.terms(task.student, batch, generator(0))), expected)


def test_a_labeller_with_other_tokens(labeller: Path) -> None:
    """Each token of the student gets the mean of what the labeller says of its place; at every size of images."""
    wider = VIT.replace("patch_size=8", "patch_size=16")
    task = Classification(recipe(labeller, "stl(labels='soft')", model=wider, sizes=(16, 32)))
    images = first_batch(task.__class__(recipe(labeller))).spatial
    z = token_logits(labeller, images).unflatten(1, (2, 2, 2, 2)).mean((2, 4)).flatten(1, 2)
    found = task.teacher.token_labels(images, task.student, generator(0))
    assert_close(found.dense(10), z.softmax(-1))
    small = first_batch(task)
    assert small.spatial.shape == (8, 3, 16, 16)
    assert task.teacher.token_labels(small.spatial, task.student, generator(0)).rest.shape == (8, 1)


def test_it_is_left_alone_and_draws_from_the_step_s_generator(labeller: Path) -> None:
    task = Classification(recipe(labeller))
    batch, student = first_batch(task), task.student.eval()
    losses = [total(task.terms(student, batch, generator(seed))) for seed in (1, 1, 2)]
    losses[0].backward()
    assert torch.equal(losses[0], losses[1])
    assert not torch.equal(losses[0], losses[2])
    assert all(parameter.grad is None for parameter in task.teacher.labeller.parameters())
    assert not any(module.training for module in task.teacher.labeller.modules())
    assert task.config["guide_parameters"] == sum(one.numel() for one in task.teacher.labeller.parameters())
    plain = Classification(recipe("", "plain"))
    mixes = [one.mixer(batch.images, generator(1)) for one in (task, plain)]
    assert torch.equal(mixes[0].share, mixes[1].share)


def test_any_lvvit_labels(tmp_path: Path) -> None:
    weights = tmp_path / "lvvit.safetensors"
    save_file(load(f"{LVVIT}=random").model.state_dict(), weights)
    task = Classification(recipe(f"{LVVIT}={weights}", teacher_size=32, model=LVVIT))
    assert total(task.terms(task.student, first_batch(task), generator(0))).isfinite()


@pytest.mark.usefixtures("_no_figures")
def test_a_run_that_was_killed_ends_alike_and_knows_its_labeller(
    labeller: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train("small_vit_stl", tmp_path / "whole", "--teacher", labeller, "--color-jitter", 0.4) == 0

    def killed(self: Classification, *how: Any) -> Iterator[Any]:
        for number, batch in enumerate(read(self, *how)):
            if number == 3:  # of 6, in the middle of an update
                raise RuntimeError("killed")
            yield batch

    read = Classification.train_batches
    with monkeypatch.context() as patch:
        patch.setattr(Classification, "train_batches", killed)
        with pytest.raises(RuntimeError, match="killed"):
            train("small_vit_stl", tmp_path / "halves", "--teacher", labeller, "--color-jitter", 0.4)
    again = ("small_vit_stl", tmp_path / "halves", "--teacher", labeller, "--color-jitter", 0.4, "--resume")
    assert train(*again) == 0
    for name in ("last", "last_heads", "model", "heads"):
        assert same(*(load_file(tmp_path / part / f"{name}.safetensors") for part in ("whole", "halves")))
    head = {name: 2 * value for name, value in load_file(labeller / "heads.safetensors").items()}
    before = (labeller / "heads.safetensors").read_bytes()
    try:
        save_file(head, labeller / "heads.safetensors")
        list_file(labeller / "heads.safetensors")
        capsys.readouterr()
        assert train(*again) == 2
        assert "was started with another teacher" in capsys.readouterr().err
    finally:
        (labeller / "heads.safetensors").write_bytes(before)
        list_file(labeller / "heads.safetensors")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--teacher", ""], "the target stl needs a labeller: --teacher RUN, a run with --target stl_labeler"),
        (["--teacher", "PLAIN"], "has no head for tokens, which the target stl takes labels from: give the folder"),
        (["--teacher", "test_vit=random"], "10 of the data's 10 classes are unknown to test_vit"),
        (["--labels", "labels"], "the target stl does not use --labels; token_label, for example, does"),
        (["--auto-augment", "augmix-m5-w4-d2"], "which a labeller that sees no changes of colours cannot follow"),
        (["--target", "stl(labels='argmax')"], "labels must be 'drawn', 'soft' or 'likeliest', not 'argmax'"),
        (["--target", "distill(target='stl')"], "the target stl has a teacher already"),
        (["--mixer", "recursivemix"], "but the mixer recursivemix pastes from the batch before; use another mixer"),
        (["--target", "stl_labeler"], "the target stl_labeler has no use for --teacher"),
        (["--loss", "bce(threshold=0)", "--smoothing", "0"], "makes every label 0 or 1, so the target stl would make"),
    ],
)
def test_bad_input(
    labeller: Path, tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "PLAIN" in arguments:
        save_file(load(labeller).model.state_dict(), tmp_path / "plain.safetensors")
        plain = VIT.replace(")", ", img_size=32, num_classes=10)")
        arguments = ["--teacher", f"{plain}={tmp_path / 'plain.safetensors'}"]
    capsys.readouterr()
    assert train("small_vit_stl", tmp_path / "run", "--teacher", labeller, *arguments) == 2
    told = capsys.readouterr().err
    assert message in told
    assert len(told.splitlines()) == 1
    assert not (tmp_path / "run" / "recipe.json").exists()


def test_mixing_labels_is_a_switch() -> None:
    """Where the partner shows, the released code keeps the own image's label."""
    own, other = torch.zeros(1, 4, 3), torch.zeros(1, 4, 3)
    own[..., 0], other[..., 1] = 50.0, 50.0
    z = torch.cat([own, other])
    share = torch.ones(2, 1, 4, 4)
    share[:, :, :2, :2] = 0
    mix = lf.Mix(torch.tensor([1, 0]), share)
    classes = lf.soft_labels(torch.tensor([0, 1]), 3)
    perfect = torch.tensor([[1, 0, 0, 0], [0, 1, 1, 1]])  # what each token shows
    output = lf.Output(torch.zeros(2, 3), 50 * torch.eye(3)[perfect])
    losses = {}
    for mixed in (True, False):
        target = lf.targets.STL(mixed=mixed)
        truth = lf.targets.Truth(classes, tokens=target.token_labels(z, generator(0)))
        losses[mixed] = {term.name: term.value for term in target(output, truth, mix)}["tokens"]
    assert_close(losses[True], torch.tensor(0.0))
    assert_close(losses[False], torch.tensor(50 / 4))  # one token in four is told a class that it does not show
