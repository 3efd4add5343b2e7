"""TL-Align where people train: the examples as a user runs them, and what each framework gets out of them."""

import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from accelerate.state import AcceleratorState
from timm.loss import SoftTargetCrossEntropy
from timm.models import VisionTransformer
from timm.optim import create_optimizer_v2
from timm.task import TrainingTask, load_task_ema_checkpoint, resume_task_checkpoint
from timm.utils import CheckpointSaver
from torch import Tensor, nn
from torch.testing import assert_close

import labelflow as lf
from test_examples import ROOT
from test_examples import run_here as run_here  # a fixture

NEEDS = {"bare_loop": None, "timm_task": "timm.task", "hf_trainer": "transformers", "lightning_module": "lightning"}

# Lightning 2.6 with torch 2.15
IN_THIS_PROCESS = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def small_vit() -> nn.Module:
    """The model of the examples, without labelflow."""
    return VisionTransformer(
        48, 8, num_classes=10, embed_dim=64, depth=2, num_heads=4, class_token=False, global_pool="avg"
    ).eval()


@pytest.fixture(scope="module")
def scenes() -> tuple[Tensor, ...]:
    """What the examples evaluate on."""
    return example("bare_loop").scenes("val", 500).tensors


@torch.no_grad()
def accuracy(state: dict[str, Tensor], scenes: tuple[Tensor, ...]) -> float:
    """Of saved weights, in a model that never met labelflow."""
    model = small_vit()
    model.load_state_dict(state)
    images, classes = scenes
    return float((model(images).argmax(1) == classes).float().mean())


@IN_THIS_PROCESS
@pytest.mark.parametrize("name", NEEDS)
def test_a_model_learns_and_is_saved_as_it_is(
    name: str, tmp_path: Path, scenes: tuple[Tensor, ...], run_here: Callable[..., str]
) -> None:
    printed = run_here(f"examples/{name}.py", "--epochs", "3", "--out", tmp_path / "saved")
    AcceleratorState._reset_state(reset_partial_state=True)
    losses = [float(loss) for loss in re.findall(r"\bloss\W+(\d\.\d+)", printed)]
    assert len(losses) == 3
    assert losses[-1] < losses[0] - 0.05
    told = {ema: float(right) for ema, right in re.findall(r"^(EMA's )?accuracy (\d\.\d+)$", printed, re.MULTILINE)}
    assert min(told.values()) > 0.15  # by chance 0.1, give or take 0.013

    saved = torch.load(tmp_path / "saved" / "model.pt" if name == "hf_trainer" else tmp_path / "saved")
    weights = saved["state_dict"] if name == "timm_task" else saved
    assert accuracy(weights, scenes) == pytest.approx(told[""], abs=0.003)
    if name == "timm_task":
        assert accuracy(saved["state_dict_ema"], scenes) == pytest.approx(told["EMA's "], abs=0.003)
        assert not torch.equal(saved["state_dict"]["head.weight"], saved["state_dict_ema"]["head.weight"])


@IN_THIS_PROCESS
@pytest.mark.parametrize("name", NEEDS)
def test_labels_follow_tokens_in_mixed_precision(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, seen, arrived, blended = example(name), [], [], []
    draw, forward, blend = module.scenes, lf.Aligned.forward, lf.Mix.blend

    def watched_forward(aligned: lf.Aligned, images: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        logits, share = forward(aligned, images, share)
        seen.append((len(images), logits.dtype, aligned.model.training))
        arrived.append(share)
        return logits, share

    def watched_blend(mix: lf.Mix, values: Tensor, share: Tensor | None = None) -> Tensor:
        blended.append(share)
        assert_close(values.amin(1), torch.full((len(values),), 0.01))  # smoothed
        return blend(mix, values, share)

    monkeypatch.setattr(lf.Aligned, "forward", watched_forward)
    monkeypatch.setattr(lf.Mix, "blend", watched_blend)
    monkeypatch.setattr(module, "scenes", lambda split, count: draw(split, 21))
    monkeypatch.setattr(sys, "argv", [name, "--bf16", "--epochs", "1", "--out", str(tmp_path / "saved")])
    module.main()
    AcceleratorState._reset_state(reset_partial_state=True)  # the precision of the next Accelerator is its own
    # A batch and an odd one, in training only: evaluation did not come this way.
    assert seen == [(size, torch.bfloat16, True) for size in (16, 5)]
    assert [share.dtype for share in arrived] == [torch.float32] * 2
    assert all(torch.equal(*shares) for shares in zip(arrived, blended, strict=True))


@pytest.mark.parametrize("name", [name for name in NEEDS if NEEDS[name]])
def test_a_missing_package_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, NEEDS[name], None)
    with pytest.raises(ImportError, match=rf"pip install '{NEEDS[name].split('.')[0]}>="):
        example(name)


def new_task() -> TrainingTask:
    torch.manual_seed(0)
    return example("timm_task").TLAlignTask(small_vit(), lf.CutMix())


def step(task: TrainingTask, rank: int) -> dict[str, Tensor]:
    """One batch of each process; of seven, the middle one has no partner."""
    generator = torch.Generator().manual_seed(rank)
    images, classes = torch.rand(7, 3, 48, 48, generator=generator), torch.randint(10, (7,), generator=generator)
    torch.manual_seed(rank)
    result = task.train()(images, classes)
    result["loss"].backward()
    return result


def test_the_task_computes_tl_align() -> None:
    task = new_task()
    result = step(task, 3)
    generator = torch.Generator().manual_seed(3)
    images, classes = torch.rand(7, 3, 48, 48, generator=generator), torch.randint(10, (7,), generator=generator)
    torch.manual_seed(3)
    mix = lf.CutMix()(images)
    logits, share = lf.Aligned(task.trainable_module)(mix.apply(images), mix.share)
    assert_close(result["output"], logits)
    y = F.one_hot(classes, 10) * 0.9 + 0.01
    target = share[:, None] * y + (1 - share[:, None]) * y.flip(0)
    assert_close(result["loss"], -(target * logits.log_softmax(1)).sum(1).mean())
    assert not torch.equal(share, mix.lam)


def test_the_task_takes_timms_settings() -> None:
    """`TLAlignTask(model, mixup_fn.mix)` is `mixup_fn.align` with the loss."""
    mixup_fn = lf.Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, mode="pair", num_classes=10)
    task = new_task()
    task.mixer = mixup_fn.mix
    result = step(task, 3)
    generator = torch.Generator().manual_seed(3)
    images, classes = torch.rand(7, 3, 48, 48, generator=generator), torch.randint(10, (7,), generator=generator)
    torch.manual_seed(3)
    output, target = mixup_fn.align(lf.Aligned(task.trainable_module), images, classes)
    assert_close(result["output"], output)
    assert_close(result["loss"], SoftTargetCrossEntropy()(output, target))


def test_timm_sees_the_plain_model(tmp_path: Path) -> None:
    """Its optimizer, EMA, checkpoints and compiler."""
    task = new_task()
    model, names = task.trainable_module, small_vit().state_dict().keys()
    assert task.get_eval_model() is model
    optimizer = create_optimizer_v2(task.get_trainable_module(), "adamw", lr=1e-2, weight_decay=0.1)
    undecayed = [group["params"] for group in optimizer.param_groups if not group["weight_decay"]]
    assert any(parameter is model.pos_embed for parameter in undecayed[0])  # by the model's own list

    task.setup_ema(decay=0.5)
    before = model.head.weight.detach().clone()
    step(task, 0)
    optimizer.step()
    task.update_ema(step=5)
    assert_close(task.get_eval_model(ema=True).module.head.weight, (before + model.head.weight) / 2)

    CheckpointSaver(model, optimizer, checkpoint_dir=str(tmp_path), task=task)._save(tmp_path / "saved", epoch=1)
    saved = torch.load(tmp_path / "saved")
    assert saved["state_dict"].keys() == saved["state_dict_ema"].keys() == names
    other = new_task()
    other.setup_ema()
    resume_task_checkpoint(other, tmp_path / "saved", log_info=False)
    load_task_ema_checkpoint(other, tmp_path / "saved")
    images = torch.rand(2, 3, 48, 48)
    for ema in (False, True):
        assert torch.equal(other.get_eval_model(ema=ema).eval()(images), task.get_eval_model(ema=ema).eval()(images))

    expected = step(task, 1)["loss"]
    task.compile(backend="eager")
    assert_close(step(task, 1)["loss"], expected)
    assert torch.equal(task.get_eval_model().eval()(images), other.get_eval_model().eval()(images))
    assert task.get_checkpoint_state()["state_dict"].keys() == names


def ddp_task(rank: int) -> dict[str, object]:
    """What one of the two processes of test_distributed.py makes of its batch: without, then with the other's
    gradients."""
    task = new_task()
    task.setup_ema(decay=0.5)
    task.prepare_distributed()
    model = task.trainable_module
    with task.no_sync():
        step(task, rank)
    own = model.head.weight.grad.clone()
    model.zero_grad()
    step(task, rank)
    task.update_ema()
    return {
        "own": own,
        "mean": model.head.weight.grad,
        "names": list(task.get_checkpoint_state()["state_dict"]),
        "ema names": list(task.get_checkpoint_state(ema=True)["state_dict_ema"]),
    }


def test_the_trainer_refuses_threads() -> None:
    """nn.DataParallel, which it takes by itself where it sees several GPUs, would mix up labels without a word."""
    trainer = object.__new__(example("hf_trainer").TLAlignTrainer)
    with pytest.raises(RuntimeError, match="torchrun"):
        trainer.compute_loss(nn.DataParallel(lf.Aligned(small_vit())), {})


def test_the_page_quotes_the_examples() -> None:
    page = (ROOT / "docs" / "where-you-train.md").read_text()
    blocks = [block.split("```")[0] for block in page.split("```python\n")[1:]]
    quoted = [block[block.index("class ") :].strip() for block in blocks if "\nclass " in block]
    files = [(ROOT / "examples" / f"{name}.py").read_text() for name in NEEDS]
    assert [[quote in file for file in files].index(True) for quote in quoted] == [1, 2, 3]
