"""What is frozen stays as it is, to the bit; what thaws does so on time, also after an interruption."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import timm
import torch
from accelerate.state import AcceleratorState
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, nn

from labelflow.align import Student
from labelflow.data import Data
from labelflow.engine import Training
from labelflow.engine.checkpoint import Checkpoints, State
from labelflow.engine.freezing import Freezing, freezing_summary, frozen_at, part_parameters, thaw_updates
from labelflow.engine.optim import make_optimizer
from labelflow.engine.settings import Frozen
from labelflow.tasks import Recipe, train_run
from labelflow.tasks.segment.model import make_segmenter

SMALL: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": {"embed_dim": 24, "depth": 4, "num_heads": 3, "img_size": 32, "drop_path_rate": 0.3},
    "swin_tiny_patch4_window7_224": {
        "embed_dim": 16,
        "depths": (1, 1, 2, 1),
        "num_heads": (1, 2, 4, 8),
        "img_size": 64,
        "window_size": 2,
    },
    "cait_xxs24_224": {"embed_dim": 24, "depth": 3, "num_heads": 3, "img_size": 32},
    "resnet10t": {},
    "levit_128s": {"img_size": 64},
}
TINY = Recipe(  # three updates an epoch, each of two micro-batches
    model="vit_tiny_patch16_224(patch_size=8, embed_dim=24, depth=3, num_heads=3)",
    drop_path=0.3,
    data=Data(source="world(train=48, val=20)", image_size=32, test_crop=1.0, workers=0),
    training=Training(
        epochs=3,
        batch=16,
        micro_batch=8,
        warmup_epochs=0,
        lr=1e-2,
        lr_batch=0,
        ema=0.5,
        clip=1.0,
        save_updates=1,
        keep=99,
    ),
)


@pytest.fixture(autouse=True)
def _new_accelerator() -> None:
    AcceleratorState._reset_state(reset_partial_state=True)


def small(name: str = "vit_tiny_patch16_224") -> nn.Module:
    return timm.create_model(name, num_classes=5, **SMALL[name])


def inside(model: nn.Module, *starts: str) -> set[str]:
    return {name for name, _ in model.named_parameters() if name.startswith(starts)}


@pytest.mark.parametrize(
    ("name", "part", "starts"),
    [
        ("vit_tiny_patch16_224", "stem", ("cls_token", "pos_embed", "patch_embed.")),
        ("vit_tiny_patch16_224", "blocks.0-2", ("blocks.0.", "blocks.1.", "blocks.2.")),
        ("vit_tiny_patch16_224", "blocks", ("blocks.",)),
        ("vit_tiny_patch16_224", "blocks.1", ("blocks.1.",)),
        ("vit_tiny_patch16_224", "blocks.*.attn", tuple(f"blocks.{block}.attn." for block in range(4))),
        ("vit_tiny_patch16_224", "blocks.[13].norm?", tuple(f"blocks.{block}.norm" for block in (1, 3))),
        ("vit_tiny_patch16_224", "pos_embed", ("pos_embed",)),
        ("vit_tiny_patch16_224", "backbone", ("cls_token", "pos_embed", "patch_embed.", "blocks.", "norm.")),
        ("swin_tiny_patch4_window7_224", "stem", ("patch_embed.",)),
        ("swin_tiny_patch4_window7_224", "layers.0-1", ("layers.0.", "layers.1.")),
        ("swin_tiny_patch4_window7_224", "backbone", ("patch_embed.", "layers.", "norm.")),
        ("cait_xxs24_224", "stem", ("cls_token", "pos_embed", "patch_embed.")),
        ("resnet10t", "stem", ("conv1.", "bn1.")),
        ("resnet10t", "layer[12]", ("layer1.", "layer2.")),
        ("resnet10t", "backbone", ("conv1.", "bn1.", "layer")),
    ],
)
def test_parts(name: str, part: str, starts: tuple[str, ...]) -> None:
    model = small(name)
    assert part_parameters(model, part) == inside(model, *starts)


def test_the_parts_of_a_segmenter() -> None:
    swin = "swin_tiny_patch4_window7_224(embed_dim=16, depths=(1, 1, 1, 1), num_heads=(1, 2, 4, 8), window_size=4)"
    model = make_segmenter(swin, classes=3, width=8)
    assert part_parameters(model, "stem") == inside(model, "levels.model.patch_embed.")
    assert part_parameters(model, "backbone") == inside(model, "levels.model.")
    assert part_parameters(model, "auxiliary") == inside(model, "auxiliary.")


@pytest.mark.parametrize(
    ("freeze", "message"),
    [
        (
            ("block",),
            r"no part 'block'; it has stem, backbone, cls_token, pos_embed, patch_embed, blocks.0-3, norm, head",
        ),
        (("blocks.2-5",), r"no part 'blocks.4' of blocks.2-5; it has stem"),
        (("blocks.3-0",), r"no part 'blocks.3-0'"),
        (("blocks.*.conv",), r"no part 'blocks.\*.conv'"),
        (("stem@3",), "stem@3 would thaw when the run is over, after epoch 3; without @3"),
        (("backbone", "head"), "--freeze backbone head leaves nothing to train$"),
        (("backbone@2", "head"), "--freeze backbone@2 head leaves nothing to train before epoch 3"),
    ],
)
def test_what_cannot_be_frozen(freeze: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        thaw_updates(small(), Training(epochs=3, freeze=freeze), per_epoch=4)


@pytest.mark.parametrize("text", ["", "@3", "stem@", "stem@0", "stem@-1", "stem@1.5", "stem@ten"])
def test_words_that_name_no_part(text: str) -> None:
    with pytest.raises(ValueError, match="--freeze takes parts, or PART@EPOCH"):
        Training(freeze=(text,))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layer_decay": 0.0}, r"layer_decay must lie in \(0, 1\]"),
        ({"layer_decay": 1.5}, r"layer_decay must lie in \(0, 1\]"),
        ({"layer_decay": math.nan}, r"layer_decay must lie in \(0, 1\]"),
        ({"layer_decay_min_scale": -0.1}, "layer_decay_min_scale must lie in"),
        ({"head_lr": 0.0}, "head_lr must be positive"),
        ({"head_lr": math.inf}, "head_lr must be positive and finite"),
        ({"betas": (0.9, 1.0)}, r"betas must lie in \[0, 1\)"),
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Training(**settings)


MODEL = small()


@given(st.lists(st.tuples(st.integers(0, 3), st.none() | st.integers(1, 9)), max_size=6), st.integers(1, 7))
def test_of_two_parts_that_overlap_the_longer_one_counts(chosen: list[tuple[int, int | None]], per_epoch: int) -> None:
    model = MODEL
    freeze = tuple(f"blocks.{block}" + (f"@{epoch}" if epoch else "") for block, epoch in chosen)
    until = thaw_updates(model, Training(epochs=10, freeze=freeze), per_epoch)
    for update in range(10 * per_epoch):
        epoch = update // per_epoch  # so many have ended
        held = {block for block, last in chosen if last is None or epoch < last}
        assert frozen_at(until, update) == inside(model, *(f"blocks.{block}." for block in held))


def test_what_is_said() -> None:
    model = small()
    sizes = {name: one.numel() for name, one in model.named_parameters()}
    total, stem = sum(sizes.values()), sum(sizes[name] for name in inside(model, "cls", "pos", "patch"))
    blocks = sum(sizes[name] for name in inside(model, "blocks.0.", "blocks.1."))
    said = freezing_summary(model, Training(epochs=9, freeze=("stem", "blocks.0-1@4")), per_epoch=5)
    assert said == (
        f"training {total - stem - blocks:,} of {total:,} parameters; frozen: stem; frozen until epoch 4 has ended: "
        f"blocks.0-1 ({total - stem:,} from then on)"
    )
    assert freezing_summary(model, Training(), per_epoch=5) == ""


def modes(model: nn.Module) -> set[str]:
    return {name for name, module in model.named_modules() if not module.training}


def test_whole_modules_are_in_eval_mode_while_they_are_frozen() -> None:
    model = small("resnet10t").train()
    freezing = Freezing(model, Training(epochs=9, freeze=("stem", "layer1@2", "layer2.0.bn1.weight")), per_epoch=3)
    both = {name for name, _ in model.named_modules() if name.startswith(("conv1", "bn1", "layer1"))}
    images, before = torch.rand(2, 3, 32, 32), {name: value.clone() for name, value in model.state_dict().items()}
    for update in (0, 5):
        model.eval().train()  # an evaluation
        freezing.begin(update)
        assert modes(model) == both
        model(images)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {name for name in before if "running" in name or "tracked" in name} - {
        name for name in before if name.startswith(("conv1", "bn1", "layer1"))
    }
    freezing.begin(6)
    assert modes(model) == {name for name in both if not name.startswith("layer1")}


@pytest.mark.parametrize("name", SMALL)
def test_gradients_of_what_thaws_later_are_dropped(name: str) -> None:
    """Of several micro-batches, also where a model keeps things in eval mode (LeViT)."""
    model = small(name).train()
    freezing = Freezing(model, Training(epochs=9, freeze=("stem@2",)), per_epoch=3)
    stem, size = part_parameters(model, "stem"), SMALL[name].get("img_size", 64)
    for update in (0, 1, 5, 6):
        model.zero_grad()
        for _ in range(2):
            freezing.begin(update)
            found = model(torch.rand(2, 3, size, size))
            (found[0] if isinstance(found, tuple) else found).square().sum().backward()
        freezing.drop_gradients()
        without = {name for name, one in model.named_parameters() if one.grad is None}
        assert without >= stem if update < 6 else not without & stem
        assert not without - stem


def weights(folder: Path, update: int, file: str = "model") -> dict[str, Tensor]:
    return load_file(folder / "checkpoints" / f"{update:08d}" / f"{file}.safetensors")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three epochs of three updates; the stem never thaws, blocks.0-1 after the first epoch."""
    AcceleratorState._reset_state(reset_partial_state=True)
    folder = tmp_path_factory.mktemp("frozen")
    train_run(FROZEN, folder, resume=False, quiet=True)
    return folder


FROZEN = TINY.change(freeze=("stem", "blocks.0-1@1"), layer_decay=0.7, head_lr=2.0, betas=(0.9, 0.95))


def test_a_run(run: Path) -> None:
    """Frozen weights are bit-identical in each checkpoint, with weight decay, clipping and an average; others move."""
    before, averages = weights(run, 1), [weights(run, update, "ema") for update in range(1, 10)]
    for update in range(2, 10):
        now = weights(run, update)
        same = {name for name, value in now.items() if torch.equal(value, before[name])}
        stem = {name for name in now if name.startswith(("cls_token", "pos_embed", "patch_embed"))}
        blocks = {name for name in now if name.startswith(("blocks.0.", "blocks.1."))}
        assert same == (stem | blocks if update <= 3 else stem), update
        assert all(torch.equal(averages[update - 1][name], before[name]) for name in same)


def test_frozen_parts_have_no_optimizer_state_before_they_thaw(run: Path) -> None:
    for update in (3, 4, 9):
        optimizer = torch.load(run / "checkpoints" / f"{update:08d}" / "optimizer.pt", weights_only=True)
        state = {name.removeprefix("model."): one for name, one in optimizer["state"].items()}
        assert not any(name.startswith(("cls_token", "pos_embed", "patch_embed")) for name in state)
        steps = {int(one["step"]) for name, one in state.items() if name.startswith(("blocks.0.", "blocks.1."))}
        assert steps == ({update - 3} if update > 3 else set())
        assert int(state["head.weight"]["step"]) == update


@pytest.mark.parametrize("stopped", [2, 3, 4])
def test_a_run_resumes_identically(run: Path, tmp_path: Path, stopped: int) -> None:
    """Before, at and after the thaw."""
    with pytest.raises(InterruptedError), patch.object(Checkpoints, "save", failing_after(stopped)):
        train_run(FROZEN, tmp_path, resume=False, quiet=True)
    train_run(FROZEN, tmp_path, resume=True, quiet=True)
    for file in ("model", "ema"):
        expected, found = weights(run, 9, file), weights(tmp_path, 9, file)
        assert all(torch.equal(value, found[name]) for name, value in expected.items())


def failing_after(update: int, save: Callable[..., None] = Checkpoints.save) -> Callable[..., None]:
    def save_and_fail(checkpoints: Checkpoints, state: State) -> None:
        save(checkpoints, state)
        if state.update == update:
            raise InterruptedError

    return save_and_fail


def test_a_linear_probe_trains_the_classifier_alone(tmp_path: Path) -> None:
    train_run(TINY.change(freeze=("backbone",), target="plain", epochs=1), tmp_path, resume=False, quiet=True)
    first, last = weights(tmp_path, 1), weights(tmp_path, 3)
    moved = {name for name, value in last.items() if not torch.equal(value, first[name])}
    assert moved == {"head.weight", "head.bias"}


def test_checkpointing_with_a_frozen_stem_trains_the_blocks(tmp_path: Path) -> None:
    recipe = TINY.change(freeze=("stem",), epochs=1, checkpointing=True)
    train_run(recipe, tmp_path / "checkpointed", resume=False, quiet=True)
    train_run(recipe.change(checkpointing=False), tmp_path / "plain", resume=False, quiet=True)
    one, other = weights(tmp_path / "checkpointed", 3), weights(tmp_path / "plain", 3)
    assert all(torch.allclose(value, other[name], atol=1e-5) for name, value in one.items())


def test_frozen_weights_of_a_compiled_student_stay() -> None:
    """Also while they have gradients, and weight decay would shrink them."""
    torch.manual_seed(0)
    shallow = timm.create_model("vit_tiny_patch16_224", num_classes=5, **{**SMALL["vit_tiny_patch16_224"], "depth": 2})
    student = Student(shallow).train()
    training = Training(epochs=2, lr=0.1, lr_batch=0, weight_decay=0.5, freeze=("stem", "blocks.0@1"))
    freezing = Freezing(student.model, training, per_epoch=2)
    optimizer = make_optimizer(student, training)
    student.compile(backend="eager")
    before = {name: one.detach().clone() for name, one in student.model.named_parameters()}
    for update in (0, 1, 2):
        freezing.begin(update)
        student(torch.rand(2, 3, 32, 32)).logits.square().sum().backward()
        freezing.drop_gradients()
        optimizer.step()
        optimizer.zero_grad()
        same = {name for name, one in student.model.named_parameters() if torch.equal(one, before[name])}
        stem = inside(student.model, "cls_token", "pos_embed", "patch_embed.")
        assert same == (stem | inside(student.model, "blocks.0.") if update < 2 else stem)


def test_parsing() -> None:
    assert Training(freeze=("stem", "blocks.0-5@10"), epochs=20).frozen == [
        Frozen("stem", None),
        Frozen("blocks.0-5", 10),
    ]
    assert replace(Training(), freeze=()).frozen == []
