"""Token labels from annotation to a trained model, as a user runs them; resumed, compiled, on two processes."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

import labelflow as lf
from helpers import build, images_for
from labelflow.classifier import load
from labelflow.cli import main
from labelflow.engine import Run
from labelflow.labels import Store
from labelflow.targets import TARGETS, TokenLabel
from labelflow.tasks import Classification
from targets.test_token_label import truth_for

DATA = "world(train=24, val=8)"
QUICK = [
    "--data",
    DATA,
    "--batch",
    "8",
    "--micro-batch",
    "4",
    "--epochs",
    "2",
    "--warmup-epochs",
    "0",
    "--workers",
    "0",
]
VIT = "vit_tiny_patch16_224(patch_size=16, embed_dim=24, depth=2, num_heads=3)"
LVVIT = "lvvit_t(embed_dim=24, depth=2, num_heads=3, stem='conv1')"


def run(*arguments: str | Path) -> int:
    return main([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the sample world, by a ViT that hardly knows it."""
    folder = tmp_path_factory.mktemp("labels")
    assert run("train", "small_vit_cutmix", *QUICK, "--model", VIT, "--out", folder / "annotator") == 0
    how = ["--workers", "0", "--top", "3", "--out", folder / "labels"]
    assert run("annotate", DATA, "--model", folder / "annotator", *how) == 0
    return folder / "labels"


def train(labels: Path, out: Path, target: str = "token_label", model: str = VIT, *more: str) -> int:
    mixer = "mixtoken(patch=16)"
    settings = ["--model", model, "--mixer", mixer, "--target", target, "--labels", labels, "--out", out]
    return run("train", "small_lvvit", *QUICK, *settings, "--save-updates", "1", *more)


@pytest.mark.parametrize("target", [name for name, target in TARGETS.items() if target.dense])
@pytest.mark.parametrize("model", [VIT, LVVIT])
def test_every_dense_target_trains(
    labels: Path, tmp_path: Path, target: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if target != "token_label":  # whose pages have the papers' figures, which take longer than these runs
        monkeypatch.setattr("labelflow.report.classifier.FIGURES_SHOWN", {})
    whole = target in ("relabel", "token_mix")  # dense labels that teach the image, not its tokens
    model = model.replace(")", ", aux_head=False)") if whole and model == LVVIT else model
    assert train(labels, tmp_path, target, model) == 0
    plain = load(tmp_path).model  # loads exactly: what is saved is the plain model
    heads = list(tmp_path.glob("checkpoints/*/heads.safetensors"))
    assert bool(heads) == (model == VIT and not whole)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    losses = {name for line in lines for name in line if name.startswith("loss_")}
    assert losses == ({"loss_class"} if whole else {"loss_class", "loss_tokens"})
    assert "the annotator's label maps" in (tmp_path / "report.html").read_text()
    assert plain(torch.zeros(1, 3, 64, 64)).shape == (1, 10)


@pytest.mark.usefixtures("_no_figures")
def test_a_killed_run_goes_on_with_its_token_head(
    labels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train(labels, tmp_path / "whole") == 0

    def killed(self: Classification, *args: object, **options: object) -> Iterator[object]:
        for number, batch in enumerate(batches(self, *args, **options)):
            if number == 7:
                raise RuntimeError("killed")
            yield batch

    batches = Classification.train_batches
    monkeypatch.setattr(Classification, "train_batches", killed)
    with pytest.raises(RuntimeError, match="killed"):
        train(labels, tmp_path / "halves")
    monkeypatch.setattr(Classification, "train_batches", batches)
    assert train(labels, tmp_path / "halves", "token_label", VIT, "--resume") == 0
    for name in ("model", "heads"):
        one, other = (
            load_file(sorted((tmp_path / part).glob(f"checkpoints/*/{name}.safetensors"))[-1])
            for part in ("whole", "halves")
        )
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "token_label", "--labels", ""], "needs dense labels: make them with labelflow annotate"),
        (["--target", "plain"], "does not use --labels"),
        (["--labels", "nowhere"], "there is no folder nowhere"),
        (["--auto-augment", "augmix-m3-w3"], "augmix blends several views"),
        (["--data", "world(train=24, val=8, seed=1)"], "no labels for 24 of the 24 training images"),
        (["--mixer", "mixtoken(patch=8)"], r"mixtoken(patch=16)"),
    ],
)
def test_bad_input(
    labels: Path, tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(labels, tmp_path, "token_label", VIT, *arguments) == 2
    told = capsys.readouterr().err
    assert message in told
    assert len(told.splitlines()) == 1


@pytest.mark.usefixtures("_no_figures")
def test_a_run_does_not_go_on_with_other_labels(
    labels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(labels, tmp_path) == 0
    config = Run(tmp_path).config()
    assert config["dense_labels"] == Store(labels).checksum
    Run(tmp_path).write("config.json", {**config, "dense_labels": "others"})
    assert train(labels, tmp_path, "token_label", VIT, "--resume") == 2
    assert "was started with other dense labels" in capsys.readouterr().err


def test_compiled_without_a_graph_break() -> None:
    torch.compiler.reset()
    model, images = build("lvvit"), images_for("lvvit")
    share = torch.ones(4, 1, *images.shape[2:])
    share[..., : images.shape[3] // 2] = 0
    mix = lf.Mix(torch.arange(4).flip(0), share, at="tokens")
    target = TokenLabel()
    student = target.student(model)
    tokens = student.token_grid((images.shape[2], images.shape[3]))
    truth = truth_for(4, tokens[0] * tokens[1])
    slopes = []
    for one in (student, torch.compile(student, fullgraph=True, backend="aot_eager")):
        model.zero_grad()
        lf.total(target(one(images, mix), truth, mix)).backward()
        slopes.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    assert_close(slopes[1], slopes[0], atol=1e-5, rtol=1e-4)
    torch.compiler.reset()
