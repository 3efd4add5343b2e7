"""The parts of the engine against their formulas, and what it does when things go wrong."""

import math
import multiprocessing
import os
import resource
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from accelerate.state import AcceleratorState
from PIL import Image
from safetensors.torch import load_file
from torch import nn
from torch.testing import assert_close

from labelflow.classifier import load
from labelflow.data import Batch, Data
from labelflow.engine import Interrupted, Run, Training
from labelflow.engine.ema import Ema
from labelflow.engine.optim import make_optimizer, make_schedule
from labelflow.loss import Term
from labelflow.models.create import create
from labelflow.recipes import find
from labelflow.tasks import Classification, Recipe, evaluate_run, train_run
from labelflow.tasks.accuracy import Accuracy

TINY = Recipe(
    model="vit_tiny_patch16_224(patch_size=8, embed_dim=24, depth=2, num_heads=3)",
    data=Data(source="world(train=48, val=20)", image_size=32, test_crop=1.0, workers=0),
    training=Training(epochs=2, batch=16, micro_batch=8, warmup_epochs=1, log_updates=1),
)


@pytest.fixture(autouse=True)
def _new_accelerator() -> None:
    AcceleratorState._reset_state(reset_partial_state=True)


def rates(training: Training, per_epoch: int) -> list[float]:
    parameter = nn.Linear(2, 2)
    schedule = make_schedule(make_optimizer(parameter, training), training, per_epoch)
    return [schedule(update) for update in range((training.epochs + training.cooldown_epochs) * per_epoch)]


def test_deit_s_schedule() -> None:
    """Cosine from 1e-3 to 1e-5 with 5 epochs of warm-up inside, an epoch late: recipes.md, 1."""
    per_epoch, found = 3, rates(find("deit_small").recipe.training, 3)
    for epoch in range(300):
        at = max(0, epoch - 1)
        cosine = 1e-5 + 0.5 * (1e-3 - 1e-5) * (1 + math.cos(math.pi * at / 300))
        expected = 1e-6 + at / 5 * (1e-3 - 1e-6) if at < 5 else cosine
        assert_close(found[epoch * per_epoch : (epoch + 1) * per_epoch], [expected] * per_epoch)


def test_swin_s_schedule_goes_by_update() -> None:
    found = rates(find("swin_tiny").recipe.training, 4)
    assert_close(found[40], 1e-6 + 0.5 * (1e-3 - 1e-6))
    assert_close(found[600], 1e-5 + 0.5 * (1e-3 - 1e-5) * (1 + math.cos(math.pi * 0.5)))
    assert len(set(found)) == len(found)


def test_constant_and_cooldown() -> None:
    assert set(rates(find("deit_base_tl_align").recipe.training, 2)) == {1e-5}
    found = rates(find("deit_small_310").recipe.training, 1)
    assert len(found) == 310
    assert set(found[300:]) == {1e-5}
    assert_close(found[20], 1e-5 + 0.5 * (1e-3 - 1e-5) * (1 + math.cos(math.pi * 20 / 300)))


def test_weight_decay_exempts_what_the_papers_exempt() -> None:
    def exempt(name: str) -> set[str]:
        model = timm.create_model(name)
        optimizer = make_optimizer(model, Training())
        free = {id(p) for group in optimizer.param_groups if not group["weight_decay"] for p in group["params"]}
        return {name for name, parameter in model.named_parameters() if id(parameter) in free and parameter.ndim > 1}

    assert exempt("deit_tiny_patch16_224") == {"cls_token", "pos_embed"}
    assert exempt("pvt_tiny") == {"cls_token"}  # its position embeddings are decayed
    assert {name.split(".")[-1] for name in exempt("swin_tiny_patch4_window7_224")} == {"relative_position_bias_table"}


def test_the_average_of_weights() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    ema = Ema(model, decay=0.75)
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    for _ in range(3):
        model(torch.randn(4, 3))
        with torch.no_grad():
            model[0].weight.add_(torch.randn(2, 3))
        ema.update()
        for name, value in model.state_dict().items():
            expected[name] = 0.75 * expected[name] + 0.25 * value if value.is_floating_point() else value.clone()
    own = {name: value.clone() for name, value in model.state_dict().items()}
    with ema.weights():
        assert_close(dict(model.state_dict()), expected)
    assert_close(dict(model.state_dict()), own, atol=0, rtol=0)


def test_weights_load_into_timm_as_they_are(tmp_path: Path) -> None:
    metrics = train_run(TINY.change(ema=0.5, clip=1.0), tmp_path / "run", resume=False)
    config = Run(tmp_path / "run").config()
    model = timm.create_model(
        config["architecture"], checkpoint_path=str(tmp_path / "run" / "last.safetensors"), **config["model_args"]
    )
    loaded = load(tmp_path / "run", "last")
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(model.eval()(images), loaded.model(images))
    assert {"top1", "top5", "loss", "ema_top1", "ema_top5", "ema_loss"} == set(metrics)
    assert list(loaded.classes) == config["label_names"]


def test_the_best_weights_are_those_of_the_best_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accuracies = iter([10.0, 30.0, 20.0])
    monkeypatch.setattr("labelflow.engine.loop.evaluate", lambda *_: {"top1": next(accuracies), "loss": 1.0})
    train_run(TINY.change(epochs=3, keep=9), tmp_path, resume=False, quiet=True)
    best = load_file(tmp_path / "model.safetensors")
    for update, same in ((3, False), (6, True), (9, False)):
        (checkpoint,) = [path for path in (tmp_path / "checkpoints").iterdir() if int(path.name) == update]
        weights = load_file(checkpoint / "model.safetensors")
        assert all(torch.equal(best[name], weights[name]) for name in best) == same


def test_every_term_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_run(TINY, tmp_path / "one", resume=False, quiet=True)
    terms = Classification.terms

    def split(*given: Any) -> list[Term]:
        (term,) = terms(*given)
        return [Term("nothing", 0 * term.value, 1.0), Term("half", term.value / 2, 1.5), Term("rest", term.value, 0.25)]

    AcceleratorState._reset_state(reset_partial_state=True)
    monkeypatch.setattr(Classification, "terms", split)
    train_run(TINY, tmp_path / "three", resume=False, quiet=True)
    one, three = (load_file(tmp_path / name / "last.safetensors") for name in ("one", "three"))
    for name, weights in one.items():
        assert_close(three[name], weights, atol=1e-5, rtol=1e-4)


WAYS = [{"precision": "bf16"}, {"precision": "tf32"}, {"checkpointing": True}, {"tracker": "tensorboard"}]


@pytest.mark.parametrize("how", WAYS)
def test_ways_to_train(tmp_path: Path, how: dict) -> None:
    metrics = train_run(TINY.change(**how, epochs=1, warmup_epochs=0), tmp_path / "run", resume=False)
    assert math.isfinite(metrics["loss"])
    if "tracker" in how:
        assert list((tmp_path / "run").rglob("events.out.tfevents*"))


@pytest.mark.parametrize(("mode", "marks"), [("", 0), ("default", 0), ("reduce-overhead", 6), ("max-autotune", 6)])
def test_compiled_students(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, marks: int) -> None:
    """The mode is torch.compile's; CUDA graphs are told when an update begins, not when a micro-batch does."""
    asked, marked = [], []
    with monkeypatch.context() as patched:
        patched.setattr(nn.Module, "compile", lambda module, **how: asked.append(how))
        patched.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: marked.append(None))
        train_run(TINY.change(compile=mode, micro_batch=16), tmp_path, resume=False, quiet=True)
    assert asked == ([{"mode": mode, "dynamic": False}] if mode else [])
    assert len(marked) == marks


def test_a_compiled_run_trains_as_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In training and in evaluations, of the average too, whatever their last batch holds."""
    compiled = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda module, mode, **how: compiled(module, backend="eager", **how))
    how = {"drop_path": 0.2, "ema": 0.5, "mixer": "0.5*mixup(alpha=0.8) + 0.5*cutmix(alpha=1.0)"}
    plain = train_run(TINY.change(**how), tmp_path / "plain", resume=False, quiet=True)
    torch.compiler.reset()
    assert train_run(TINY.change(compile="default", **how), tmp_path / "fast", resume=False, quiet=True) == plain


@pytest.mark.parametrize(("one_size", "deterministic"), [(True, False), (True, True), (False, False)])
def test_convolutions_are_timed_where_sizes_are_fixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_size: bool, deterministic: bool
) -> None:
    seen, terms = [], Classification.terms

    def look(*given: Any) -> list[Term]:
        seen.append(torch.backends.cudnn.benchmark)
        return terms(*given)

    monkeypatch.setattr(Classification, "terms", look)
    monkeypatch.setattr(Classification, "one_size", one_size)
    train_run(TINY.change(deterministic=deterministic, epochs=1), tmp_path, resume=False, quiet=True)
    assert set(seen) == {one_size and not deterministic}
    assert not torch.backends.cudnn.benchmark  # as it was


def test_checkpointing_changes_nothing(tmp_path: Path) -> None:
    one = train_run(TINY.change(drop_path=0.3), tmp_path / "one", resume=False)
    assert one == train_run(TINY.change(drop_path=0.3, checkpointing=True), tmp_path / "other", resume=False)


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"not finite at update \d+ .*last good checkpoint"):
        train_run(TINY.change(lr=1e30, lr_batch=0, epochs=4, save_updates=1, log_updates=5), tmp_path / "run", False)
    weights = load(tmp_path / "run", "last").model.state_dict().values()
    assert all(value.isfinite().all() for value in weights)


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss does not tell of what its own update did."""
    real = Ema.update

    def overflow(self: Ema) -> None:
        real(self)
        self.model.model.head.weight.data.fill_(float("inf"))

    monkeypatch.setattr(Ema, "update", overflow)
    with pytest.raises(ValueError, match="weights are not finite after update 1"):
        train_run(TINY.change(ema=0.5, save_updates=1), tmp_path / "run", resume=False)
    assert not list((tmp_path / "run").rglob("*.safetensors"))


def test_what_cannot_be_told_apart_is_not_right() -> None:
    batch = Batch(torch.zeros(6, 3, 8, 8), torch.arange(6), torch.ones(6), [])
    assert Accuracy("abcdef").measure(torch.zeros(6, 6), batch)["top1"] == 1
    logits = torch.randn(6, 6)
    assert Accuracy("abcdef").measure(logits, batch)["top1"] == (logits.argmax(1) == batch.labels).sum()
    assert Accuracy("abcdef").measure(logits, batch)["top5"] == (logits.argsort(1).argsort(1).diagonal() >= 1).sum()


def test_a_run_on_a_stream(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for name in "ab":
            (tmp_path / "set" / split / name).mkdir(parents=True)
            for number in range(8):
                Image.new("RGB", (40, 40), (number, 0, 0)).save(tmp_path / "set" / split / name / f"{number}.png")
    how = {"source": f"hfids/{tmp_path / 'set'}", "val_split": "validation", "train_samples": 16, "val_samples": 16}
    metrics = train_run(TINY.change(**how), tmp_path / "run", resume=False)
    assert 0 <= metrics["top1"] <= 100


def test_a_run_killed_before_its_first_checkpoint_forgets_its_metrics(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    train_run(TINY, run.folder, resume=False)
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints" / ".00000007.draft").mkdir(parents=True)
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"kind": "tra')
    train_run(TINY, run.folder, resume=True)
    assert [line["update"] for line in run.metrics() if line["kind"] == "train"] == list(range(1, 7))
    assert not list(run.folder.rglob("*.draft"))


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train_run(TINY, run, resume=False)
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    longer = TINY.change(epochs=2, cooldown_epochs=0)
    recipe = Run(run).read("recipe.json")
    Run(run).write("recipe.json", {**recipe, "training": {**recipe["training"], "epochs": 3}})
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (20_000, hard)
    )  # no file may grow beyond: writing fails as on a full disk
    try:
        with pytest.raises(OSError, match="earlier checkpoints are kept"):
            train_run(longer.change(epochs=3), run, resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    for file, content in before.items():
        if file.suffix in (".safetensors", ".pt"):
            assert file.read_bytes() == content
    assert not list(run.rglob("*draft*"))
    train_run(longer.change(epochs=3), run, resume=True)


@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop_a_run_saves_and_can_be_resumed(tmp_path: Path, asked: signal.Signals) -> None:
    recipe = TINY.change(epochs=4, workers=1)

    def interrupt() -> None:
        while len(Run(tmp_path / "stopped").metrics()) < 4:
            time.sleep(0.01)
        for child in multiprocessing.active_children():  # as a terminal and a scheduler do
            os.kill(child.pid, asked)
        os.kill(os.getpid(), asked)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(Interrupted, match="checkpoint saved"):
        train_run(recipe, tmp_path / "stopped", resume=False)
    train_run(recipe, tmp_path / "stopped", resume=True)
    train_run(recipe, tmp_path / "alone", resume=False)
    for name in ("last.safetensors", "model.safetensors"):
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()


def test_fsdp_that_is_not_active_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ValueError, match="FSDP was requested but is not active"):
        train_run(TINY, tmp_path / "run", resume=False)
    assert not (tmp_path / "run").exists()


class TestFolders:
    def test_a_run_is_not_overwritten(self, tmp_path: Path) -> None:
        short = TINY.change(epochs=1, warmup_epochs=0)
        train_run(short, tmp_path / "run", resume=False)
        with pytest.raises(ValueError, match="--resume"):
            train_run(short, tmp_path / "run", resume=False)
        with pytest.raises(ValueError, match=r"lr was 0\.0005, now 0\.1"):
            train_run(short.change(lr=0.1), tmp_path / "run", resume=True)
        train_run(short.change(workers=1, keep=3), tmp_path / "run", resume=True)  # changes nothing that counts

    def test_fine_tuning_from_a_run_at_another_size_and_with_other_classes(self, tmp_path: Path) -> None:
        train_run(TINY.change(epochs=1, warmup_epochs=0), tmp_path / "run", resume=False)
        for split in ("train", "val"):
            for name in "ab":
                (tmp_path / "data" / split / name).mkdir(parents=True)
                for number in range(8):
                    Image.new("RGB", (50, 50), (number, 0, 0)).save(tmp_path / "data" / split / name / f"{number}.png")
        tuned = TINY.change(
            init=str(tmp_path / "run"), source=str(tmp_path / "data"), image_size=48, epochs=1, warmup_epochs=0, lr=0.0
        )
        train_run(tuned, tmp_path / "tuned", resume=False)
        before, after = load(tmp_path / "run").model, load(tmp_path / "tuned").model
        assert torch.equal(before.blocks[1].mlp.fc1.weight, after.blocks[1].mlp.fc1.weight)
        assert after.pos_embed.shape[1] == 37
        assert after.head.out_features == 2

    def test_evaluation_at_another_size(self, tmp_path: Path) -> None:
        train_run(TINY.change(epochs=1, warmup_epochs=0), tmp_path / "run", resume=False)
        assert evaluate_run(tmp_path / "run", image_size=48).keys() == {"top1", "top5", "loss"}
        with pytest.raises(ValueError, match="--image-size 40 or 48"):
            evaluate_run(tmp_path / "run", image_size=45)

    def test_a_checkpoint_of_another_model(self, tmp_path: Path) -> None:
        train_run(TINY.change(epochs=1, warmup_epochs=0), tmp_path / "run", resume=False)
        deeper = TINY.change(model=TINY.model.replace("depth=2", "depth=3"), init=str(tmp_path / "run"))
        with pytest.raises(ValueError, match="weights of another model"):
            train_run(deeper, tmp_path / "x", resume=False)
        config = Run(tmp_path / "run").config()
        weights = {f"backbone.{key}": value for key, value in load(tmp_path / "run").model.state_dict().items()}
        torch.save(weights, tmp_path / "wrapped.pt")
        with pytest.raises(ValueError, match="weights of another model"):
            create(config["architecture"], init=str(tmp_path / "wrapped.pt"), **config["model_args"])
        with pytest.raises(ValueError, match="weights of another model"):  # with other classes, too
            create(
                config["architecture"], init=str(tmp_path / "wrapped.pt"), **{**config["model_args"], "num_classes": 3}
            )
        with pytest.raises(ValueError, match="weights of another model"):
            train_run(TINY.change(init=str(tmp_path / "run"), model="pvt_v2_b0"), tmp_path / "x", resume=False)
        with pytest.raises(ValueError, match="no checkpoint"):
            train_run(TINY.change(init="nowhere.pt"), tmp_path / "x", resume=False)
        (tmp_path / "bad.safetensors").write_text("no weights")
        with pytest.raises(ValueError, match="can be read"):
            train_run(TINY.change(init=str(tmp_path / "bad.safetensors")), tmp_path / "x", resume=False)
