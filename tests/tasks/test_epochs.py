"""What depends on the epoch: the size of images and whether they are mixed, from the recipe to the saved model."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from accelerate.state import AcceleratorState
from safetensors.torch import load_file

from labelflow.chance import generator
from labelflow.classifier import load
from labelflow.data import Data, open_source
from labelflow.engine import Interrupted, Run, Training, loop
from labelflow.labels import Draft, Manifest
from labelflow.loss import total
from labelflow.targets import TARGETS
from labelflow.tasks import Classification, Recipe, evaluate_run, train_run
from labelflow.tasks.epochs import count_epochs, is_mixed

VIT = "vit_tiny_patch16_224(patch_size=8, embed_dim=24, depth=2, num_heads=3)"
TINY = Recipe(
    model=VIT,
    drop_path=0.2,
    drop_path_schedule="constant",
    mix_off_epoch=2,
    data=Data(source="world(train=24, val=8)", image_size=32, sizes=(16, 24, 32), test_crop=1.0, workers=0),
    training=Training(epochs=3, batch=8, micro_batch=4, warmup_epochs=1, ema=0.9, log_updates=1, save_updates=1),
)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _new_accelerator() -> None:
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize(
    ("training", "epochs"),
    [
        ({"epochs": 7}, 7),
        ({"epochs": 7, "cooldown_epochs": 2}, 9),
        ({"epochs": 0, "updates": 9}, 3),  # 3 updates an epoch
        ({"epochs": 0, "updates": 10}, 4),  # a fourth that is cut short
    ],
)
def test_the_epochs_of_a_run(training: dict[str, int], epochs: int) -> None:
    assert count_epochs(replace(TINY.training, **training), samples=25) == epochs


def test_images_are_mixed_up_to_an_epoch() -> None:
    assert [is_mixed(TINY, epoch) for epoch in range(4)] == [True, True, False, False]
    assert all(is_mixed(TINY.change(mix_off_epoch=0), epoch) for epoch in range(4))


PLAIN = [name for name, target in TARGETS.items() if not target().dense and not target().teacher]
PLAIN.remove("recursive_mix")  # which needs its own mixer


@pytest.mark.parametrize("target", PLAIN)
@pytest.mark.parametrize("mixer", ["cutmix", "smmix", "mixtoken(patch=8)", "0.5*mixup + 0.5*puzzlemix"])
def test_from_then_on_a_target_sees_what_it_sees_without_a_mixer(target: str, mixer: str) -> None:
    """And with it before."""
    recipe = TINY.change(target=target, mixer=mixer, drop_path=0.0, sizes=())
    task = Classification(recipe)
    unmixed = Classification(recipe.change(mixer="none", mix_off_epoch=0))
    for read in list(task.train_batches(updates=9, first_update=0, rank=0, processes=1))[2::6]:
        batch = read.to(CPU)
        losses = [
            [term.value.detach() for term in one.terms(one.student.eval(), batch, generator(3))]
            for one in (task, unmixed)
        ]
        same = all(torch.equal(one, other) for one, other in zip(*losses, strict=True))
        assert same == (batch.epoch == 2)


@contextmanager
def stop_at_once() -> Iterator[Callable[[object], bool]]:
    """As if every update were interrupted."""
    yield lambda accelerator: True


def test_a_run_stopped_in_the_middle_of_an_epoch_ends_bit_for_bit_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after each update, before and after sizes change and mixing ends, with workers that live on and none."""
    train_run(TINY, tmp_path / "alone", resume=False)
    monkeypatch.setattr(loop, "_stop_signals", stop_at_once)
    for start in range(9):
        recipe = TINY.change(workers=start % 2)
        how = pytest.raises(Interrupted, match=f"after update {start + 1} of 9") if start < 8 else nullcontext()
        with how:
            train_run(recipe, tmp_path / "stopped", resume=True)
    for name in ("last.safetensors", "model.safetensors"):
        one, other = (load_file(tmp_path / run / name) for run in ("alone", "stopped"))
        assert all(torch.equal(one[key], other[key]) for key in one)
    losses = [[line["loss"] for line in Run(tmp_path / run).metrics()] for run in ("alone", "stopped")]
    assert losses[0] == losses[1]


def test_what_is_saved_is_the_last_size_s_model(tmp_path: Path) -> None:
    """It loads as ever: here, in timm, and with another size."""
    metrics = train_run(TINY, tmp_path / "run", resume=False)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["model_args"]["img_size"] == 32
    assert "dynamic_img_size" not in config["model_args"]
    assert config["pretrained_cfg"]["input_size"] == [3, 32, 32]
    images = torch.randn(2, 3, 32, 32)
    ours = load(tmp_path / "run", "last").model
    theirs = timm.create_model(
        config["architecture"], checkpoint_path=str(tmp_path / "run" / "last.safetensors"), **config["model_args"]
    )
    assert torch.equal(ours(images), theirs.eval()(images))
    with pytest.raises(AssertionError, match="doesn't match model"):
        theirs(images[..., :24, :24])
    assert evaluate_run(tmp_path / "run", "last")["loss"] == pytest.approx(metrics["ema_loss"])
    assert evaluate_run(tmp_path / "run", image_size=48)["loss"] > 0


def test_dense_labels_have_the_grid_of_each_size(tmp_path: Path) -> None:
    source = open_source(TINY.data, "train")
    manifest = Manifest("noise", "", 64, "whole", "rest", (4, 4), 2, tuple(source.classes), samples=len(source))
    draft = Draft(tmp_path / "labels", manifest, [source.key(index) for index in range(len(source))])
    chance, shape = np.random.default_rng(0), (len(source), 2, 4, 4)
    draft.write(0, chance.random(shape), chance.integers(0, len(source.classes), shape))
    recipe = TINY.change(labels=str(draft.finish().folder), target="token_label", mixer="mixtoken(patch=8)")
    task = Classification(recipe)
    grids = set()
    for read in task.train_batches(updates=9, first_update=0, rank=0, processes=1):
        batch = read.to(CPU)
        grids.add((batch.images.shape[2], batch.dense.above.shape[1]))
        assert total(task.terms(task.student.train(), batch, generator(0))).isfinite()
    assert grids == {(16, 2 * 2), (24, 3 * 3), (32, 4 * 4)}


def test_each_size_is_compiled_once() -> None:
    """Images that are not mixed any more make no difference."""
    model = VIT.replace("depth=2", "depth=1")
    task = Classification(TINY.change(target="plain", model=model, sizes=(24, 32), mix_off_epoch=1))
    compiled: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        compiled.append(max(one.shape[-1] for one in inputs if isinstance(one, torch.Tensor) and one.ndim == 4))
        return graph.forward

    torch.compiler.reset()
    task.student.compile(backend=backend, dynamic=False)
    for read in task.train_batches(updates=9, first_update=0, rank=0, processes=1):
        batch = read.to(CPU)
        task.terms(task.student.train(), batch, generator(batch.epoch))
    torch.compiler.reset()
    assert compiled == [24, 32]


def refusal(**changes: object) -> str:
    with pytest.raises(ValueError, match=r".") as refused:
        Classification(TINY.change(**changes))
    assert "\n" not in str(refused.value)
    return str(refused.value)


SWIN = "swin_tiny_patch4_window7_224(embed_dim=8, depths=(1, 1), num_heads=(1, 1), window_size=4)"
CAIT = "cait_xxs24_224(embed_dim=24, depth=1, num_heads=2, patch_size=8)"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sizes": (16, 24)}, r"--sizes must end with --image-size, .*: 32, not 24"),
        ({"sizes": (16, 20, 32)}, r"does not take images of 20×20 pixels: .* divisible by patch size \(8\)"),
        ({"sizes": (16, 16, 24, 32)}, "4 --sizes need as many epochs at least, and the run has 3"),
        ({"sizes": (0, 32)}, "must be at least 1, not 0"),
        ({"model": SWIN, "sizes": (18, 32)}, r"does not take images of 18×18 pixels|patches of 4×4 pixels"),
        ({"model": CAIT, "sizes": (16, 32), "target": "plain"}, r"does not take images of 16×16 .* match model \(32\)"),
        ({"mixer": "random_patches(patch=16)", "sizes": (24, 32)}, "24×24 pixels do not divide into patches of 16×16"),
        ({"mix_off_epoch": 3}, "--mix-off-epoch 3 lies beyond the run, whose epochs are numbered from 0 to 2"),
        ({"mix_off_epoch": -1}, "mix_off_epoch must be at least 0"),
    ],
)
def test_what_is_refused_before_anything_is_written(changes: dict[str, object], message: str) -> None:
    assert re.search(message, refusal(**changes))


def test_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--sizes must end with"):
        train_run(TINY.change(sizes=(16, 24)), tmp_path / "run", resume=False)
    assert not (tmp_path / "run").exists()
