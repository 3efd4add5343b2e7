"""Class weights and logit adjustment in the loss of a recipe, and in whole runs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch.testing import assert_close

from labelflow.chance import generator
from labelflow.data import Batch, Data, Stream
from labelflow.engine import Run, Training
from labelflow.mixers import CutMix
from labelflow.sparse import Sparse
from labelflow.tasks import Recipe, train_run
from labelflow.tasks.classify import Classification
from labelflow.tasks.imbalance import training_loss
from labelflow.tasks.runs import evaluate_in_detail

COUNTS = {"cat": 12, "dog": 4, "fox": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Classes of different sizes, to train on and to evaluate on."""
    root, chance = tmp_path_factory.mktemp("unbalanced"), np.random.default_rng(0)
    for split, divisor in (("train", 1), ("val", 2)):
        for name, count in COUNTS.items():
            (root / split / name).mkdir(parents=True)
            for number in range(count // divisor):
                pixels = chance.integers(0, 256, (24, 24, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{number}.png")
    return root


def recipe(folder: Path, **settings: Any) -> Recipe:
    plain = Recipe(
        model="vit_tiny_patch16_224(patch_size=8, embed_dim=24, depth=2, num_heads=3)",
        target="plain",
        smoothing=0.0,
        drop_path=0.0,
        data=Data(source=str(folder), image_size=16, auto_augment="", workers=0),
        training=Training(epochs=2, batch=6, micro_batch=6, warmup_epochs=0, log_updates=1),
    )
    return plain.change(**settings)


def made(folder: Path, **settings: Any) -> Classification:
    return Classification(recipe(folder, **settings), tell=lambda line: None)


def test_weights_of_a_mixed_image_are_those_of_its_parts(folder: Path) -> None:
    """share·w_a·CE(a) + (1-share)·w_b·CE(b), for a share that labels have followed tokens to, as for an area."""
    task = made(folder, class_weights="inverse")
    weights = torch.tensor([18 / 3 / count for count in COUNTS.values()])
    logits, share = torch.randn(5, 3, generator=generator(1)), torch.rand(5, generator=generator(2))
    own, other = torch.tensor([0, 1, 2, 0, 2]), torch.tensor([1, 2, 2, 0, 0])
    label = torch.lerp(F.one_hot(other, 3).float(), F.one_hot(own, 3).float(), share[:, None])
    parts = [F.cross_entropy(logits, one, reduction="none") * weights[one] for one in (own, other)]
    assert_close(task.loss(logits, label), share * parts[0] + (1 - share) * parts[1])
    assert_close(task.loss(logits, label), F.cross_entropy(logits, label, weight=weights, reduction="none"))


def test_tokens_are_weighted_alike(folder: Path) -> None:
    loss = made(folder, class_weights="effective(beta=0.9)").loss
    labels = Sparse(torch.tensor([[[2, 0]]]), torch.rand(1, 4, 2, generator=generator(1)), torch.full((1, 4), 0.02))
    logits = torch.randn(1, 4, 3, generator=generator(2))
    assert loss.weights is not None
    expected = -(loss.weights * labels.dense(3) * logits.log_softmax(-1)).sum(-1)
    assert_close(loss(logits, labels), expected)


@pytest.mark.parametrize("target", ["plain", "tl_align"])
def test_a_step_is_trained_on_weighted_labels(target: str, folder: Path) -> None:
    """The whole way: the terms of a batch, against the model's own logits and the label that its target made."""
    batch = Batch(torch.rand(6, 3, 16, 16, generator=generator(3)), torch.tensor([0, 1, 2, 0, 0, 1]), torch.ones(6), [])
    task = made(folder, target=target, class_weights="inverse")
    (term,) = task.terms(task.student, batch, generator(4))
    mix = CutMix(alpha=1.0)(batch.images, generator=generator(4))
    output = task.student(mix.apply(batch.images), mix)
    share = mix.lam if output.flow is None else output.flow.heads[..., 0].mean(1)
    label = mix.blend(F.one_hot(batch.labels, 3).float(), share)
    weights = torch.tensor([18 / 3 / count for count in COUNTS.values()])
    assert_close(term.value, F.cross_entropy(output.logits, label, weight=weights, reduction="none").mean())


def test_the_average_training_image_has_weight_1(folder: Path) -> None:
    loss = training_loss(recipe(folder, class_weights="inverse"), made(folder).train_source)
    labels = torch.eye(3).repeat_interleave(torch.tensor(list(COUNTS.values())), 0)
    assert_close(loss(torch.zeros(18, 3), labels).mean(), torch.tensor(3.0).log())


def test_logits_are_adjusted_in_training_only(folder: Path) -> None:
    """CE(z + τ·log π, y): a model that says nothing but how frequent classes are has it for free."""
    adjusted, plain = made(folder, logit_adjust=1.5), made(folder)
    logits, labels = torch.randn(4, 3, generator=generator(1)), torch.eye(3)[[0, 1, 2, 0]]
    prior = torch.tensor([count / 18 for count in COUNTS.values()])
    assert_close(adjusted.loss(logits, labels), F.cross_entropy(logits + 1.5 * prior.log(), labels, reduction="none"))
    batch = Batch(torch.rand(4, 3, 16, 16), torch.tensor([0, 1, 2, 0]), torch.ones(4), [])
    found, expected = (task.measure(task.student, batch) for task in (adjusted, plain))
    assert_close(found, expected)


def test_a_run_with_balanced_sampling(folder: Path, tmp_path: Path) -> None:
    metrics = train_run(recipe(folder, sampling="balanced", best="balanced"), tmp_path / "run", resume=False)
    run = Run(tmp_path / "run")
    details = run.read("classes.json")
    recalls = [own["recall"] for own in details.values()]
    assert metrics["balanced"] == pytest.approx(sum(recalls) / 3)
    assert [own["images"] for own in details.values()] == [6, 2, 1]
    assert run.config()["headline"] == "balanced"
    assert evaluate_in_detail(tmp_path / "run", weights="last").classes == details


def test_weights_must_be_the_same_on_resume(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "weights.json"
    file.write_text(json.dumps({"cat": 1, "dog": 2, "fox": 3}))
    asked = recipe(folder, class_weights=str(file))
    train_run(asked, tmp_path / "run", resume=False)
    train_run(asked, tmp_path / "run", resume=True)
    file.write_text(json.dumps({"cat": 1, "dog": 2, "fox": 4}))
    with pytest.raises(ValueError, match="was started with other class weights"):
        train_run(asked, tmp_path / "run", resume=True)


def test_one_remedy_at_a_time(folder: Path) -> None:
    with pytest.raises(ValueError, match="--class-weights inverse and --sampling balanced would correct the same imb"):
        recipe(folder, class_weights="inverse", sampling="balanced")
    with pytest.raises(ValueError, match=r"--class-weights inverse and --logit-adjust 1.0 would correct"):
        recipe(folder, class_weights="inverse", logit_adjust=1.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sampling": "balancd"}, "there is no sampling 'balancd'; did you mean balanced"),
        ({"class_weights": "nowhere.csv"}, "there is no file nowhere.csv with class weights"),
        ({"logit_adjust": 1.0, "loss": "bce"}, "logit adjustment is for classes that exclude one another: --loss ce"),
    ],
)
def test_refused_before_anything_is_written(
    settings: dict[str, Any], message: str, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        train_run(recipe(folder, **settings), tmp_path / "run", resume=False)
    assert not list((tmp_path / "run").glob("*.json"))


def test_negative_adjustment_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="logit_adjust must be ≥ 0 and finite, not -1"):
        recipe(folder, logit_adjust=-1.0)


@pytest.mark.parametrize("settings", [{"class_weights": "inverse"}, {"logit_adjust": 1.0}])
def test_streams_tell_no_labels(settings: dict[str, Any], folder: Path) -> None:
    stream = Stream(18, list(COUNTS), lambda epoch: iter(()))
    with pytest.raises(ValueError, match="a stream does not tell the labels of its samples beforehand"):
        training_loss(recipe(folder, **settings), stream)
