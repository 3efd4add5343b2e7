"""On a device the host never waits in a training step, and no tensors of two devices meet: shown on a pretend one.

What is proven here is proven without a GPU, so each proof is shown to find the mistake that it is there for.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from accelerate.state import AcceleratorState, PartialState
from torch import Generator, Tensor, nn
from torch.testing import assert_close
from torch.utils.data._utils.pin_memory import pin_memory

import labelflow as lf
from families import SOME
from helpers import box_mix, build, images_for
from labelflow.data import Data, PixelBatch, World, train_batches
from labelflow.engine import Run, Training, loop, make_accelerator, train
from labelflow.engine.progress import Progress
from labelflow.guides import GUIDES, UnmixedBatch, base
from labelflow.mixers import MIXERS, Guided, make_mixer, mix_batch
from labelflow.targets import TARGETS, Taught, Truth
from labelflow.tasks import Classification, Recipe
from pretend import DEVICE, STAGED, Log, OnDevice, launches, pretending
from targets.test_token_label import truth_for
from test_mixers import MIXERS as VARIANTS
from test_mixers import Shown

PUZZLE = "a maximum flow, which runs until nothing changes any more"
ALLOWED = {  # where the host waits in a step, and why
    "labelflow/mixers/puzzle_cut.py:smallest_cut": PUZZLE,
    "labelflow/mixers/puzzle_cut.py:_ways": PUZZLE,
    "labelflow/mixers/puzzlemix.py:moved_blocks": "Puzzle-Mix's rounds, of which few are needed",
}
NOW_AND_THEN = {  # where it waits between steps, and when
    "labelflow/engine/loop.py:Ledger.write": "a line of metrics",
    "labelflow/engine/loop.py:_check_finite": "a checkpoint",
    "labelflow/engine/checkpoint.py:Checkpoints.save": "a checkpoint",
    "labelflow/engine/ema.py:Ema.state": "a checkpoint",
    "labelflow/tasks/accuracy.py:Accuracy.metrics": "an evaluation",
}


def places(log: Log) -> set[str]:
    return {note.place.function for note in log.waits}


def check(log: Log) -> None:
    assert not log.meetings
    assert not log.host_scalars
    assert not log.doubles
    assert places(log) <= set(ALLOWED)


def seeded() -> Generator:
    return Generator().manual_seed(3)


def on_device(value: Any) -> Any:
    """Tensors, and what is made of them."""
    if isinstance(value, tuple):
        return type(value)(*map(on_device, value))
    return value.to(DEVICE) if isinstance(value, Tensor) else value


# ----------------------------------------------------------------------------------------- the pretend device itself


def host_mask(x: Tensor) -> None:
    x[x > 0] = x.new_ones(3)


WAITS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x.sum()),
    "if": lambda x: 1 if x.sum() > 0 else 0,
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "not even now": lambda x: x.to("cpu", non_blocking=True),
    "equal": lambda x: torch.equal(x, x),
    "allclose": lambda x: torch.allclose(x, x),
    "nonzero": lambda x: (x > 0).nonzero(),
    "mask": lambda x: x[x > 0],
    "masked values": host_mask,
    "unique": lambda x: x.unique(),
    "unknown length": lambda x: x.repeat_interleave(torch.ones_like(x, dtype=torch.long)),
    "constant": lambda x: x.new_tensor([1.0, 2.0]),
    "constant on a device": lambda x: torch.tensor([1.0, 2.0], device=x.device),
    "copy": lambda x: torch.ones(4).to(x.device),
    "copy into": lambda x: x.copy_(torch.ones(4)),
    "large copy": lambda x: torch.ones(STAGED // 4 + 1).to(x.device, non_blocking=True),
    "indices": lambda x: x[torch.tensor([0, 1])],
    "number to choose": lambda x: torch.where(x > 0, x, torch.tensor(0.0)),
}
NO_WAITS: dict[str, Callable[[Tensor], object]] = {
    "arithmetic": lambda x: (2 * x + 1).where(x > 0, 0.0).clamp(min=0.5).sum(),
    "in place": lambda x: x.masked_fill_(x > 0, 0.0),
    "number for a mask": lambda x: x.__setitem__(x > 0, 0.0),
    "made there": lambda x: torch.arange(4, device=x.device) + torch.rand(4, device=x.device),
    "made there, like something here": lambda x: torch.zeros_like(torch.ones(4), device=x.device) + x,
    "one-hot": lambda x: F.one_hot(torch.arange(4, device=x.device), 5),
    "small copy": lambda x: torch.ones(STAGED // 4).to(x.device, non_blocking=True),
    "pinned copy": lambda x: torch.ones(STAGED).pin_memory()[1:].to(x.device, non_blocking=True),
    "shape": lambda x: x.reshape(2, 2).shape[0] + len(x) + x.numel(),
}


@pytest.mark.parametrize("name", WAITS)
def test_a_wait_is_found(name: str) -> None:
    with pretending() as log:
        x = torch.arange(4.0).to(DEVICE)
        log.clear()
        WAITS[name](x)
    assert {place.split(":")[0] for place in places(log)} == {"test_device.py"}
    assert not log.meetings


@pytest.mark.parametrize("name", NO_WAITS)
def test_what_waits_for_nothing_is_left_alone(name: str) -> None:
    with pretending() as log:
        x = torch.arange(4.0).to(DEVICE)
        log.clear()
        NO_WAITS[name](x)
    check(log)


def test_devices_that_meet_are_found() -> None:
    with pretending() as log:
        x = torch.rand(4).to(DEVICE)
        log.clear()
        x + torch.ones(4)
        torch.rand(4, device=DEVICE, generator=seeded())
        torch.ones(4)[torch.arange(2, device=DEVICE)]
        assert len(log.meetings) == 3
        assert not log.host_scalars
        x * torch.tensor(2.0)
        assert len(log.host_scalars) == 1


def test_casts_and_the_dtypes_of_attention_are_told() -> None:
    """Autocast is as on a GPU: labels in float32 get queries in float32, unless someone takes care."""
    with pretending() as log:
        query = torch.rand(2, 3, 5, 8).to(DEVICE).bfloat16()
        log.clear()
        F.scaled_dot_product_attention(query, query, query)
        assert not log.casts
        query.float()
        (cast,) = log.casts
        assert cast.place.function == "test_device.py:test_casts_and_the_dtypes_of_attention_are_told"
        assert cast[1:] == ((2, 3, 5, 8), torch.bfloat16, torch.float32)
        with torch.autocast(DEVICE, torch.bfloat16):
            F.scaled_dot_product_attention(query.float(), query.float(), query.float())
            assert F.linear(query, query[0, 0]).dtype == torch.bfloat16
            assert query.softmax(-1).dtype == torch.float32
        assert [call.query.dtype for call in log.attention] == [torch.bfloat16, torch.bfloat16]
        log.clear()
        lf.soft_labels(query[0, 0], 8)  # has a .float() of its own
        assert [cast.place.function for cast in log.large_casts(40)] == ["labelflow/loss.py:soft_labels"]
        assert not log.large_casts(41)


def test_doubles_are_found() -> None:
    with pretending() as log:
        x = torch.ones(4).to(DEVICE)
        x.sum().log() + 2.5
        torch.ones(4, dtype=torch.float64).float().to(DEVICE, non_blocking=True)
        assert not log.doubles
        x.double()
        torch.ones(4, dtype=torch.float64).to(DEVICE)
        torch.arange(4, dtype=torch.float64, device=DEVICE)
        assert len(log.doubles) == 3


def test_kernels_are_counted() -> None:
    x, weight = torch.rand(3, 2, 8, 8), torch.rand(4, 8)
    assert launches(lambda x: x.flatten(1).unsqueeze(0).detach().expand(2, -1, -1)[:, 1:], x) == 0
    assert launches(lambda x: torch.empty_like(x), x) == 0
    assert launches(lambda x: x.mT.contiguous() + 1, x) == 2
    assert launches(F.linear, x, weight) == 1
    assert launches(F.scaled_dot_product_attention, x, x, x) == 1
    assert launches(nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.GELU()).eval(), x) == 3
    assert launches(lambda x: F.unfold(x, 3), x) == 3  # one for each image: torch has a loop there


def test_a_step_has_the_numbers_of_the_cpu() -> None:
    model, images = build("vit"), images_for("vit")
    mix = box_mix(images)
    mixed = mix.apply(images)
    logits, share = lf.Aligned(model)(mixed, mix.share)
    logits.sum().backward()
    expected = [parameter.grad for parameter in model.parameters()]
    with pretending():
        copy = build("vit").to(DEVICE)
        found, arrived = lf.Aligned(copy)(mixed.to(DEVICE), mix.share.to(DEVICE))
        found.sum().backward()
        assert_close(found.detach().cpu(), logits.detach(), atol=1e-5, rtol=1e-5)
        assert_close(arrived.cpu(), share, atol=1e-5, rtol=0)
        for parameter, gradient in zip(copy.parameters(), expected, strict=True):
            assert_close(parameter.grad.cpu(), gradient, atol=1e-4, rtol=1e-4)


def test_other_tests_see_no_device() -> None:
    with pretending():
        assert torch.accelerator.current_accelerator(check_available=True) == torch.device(DEVICE)
    assert not torch.accelerator.is_available()
    assert torch.tensor([1.0]).device == torch.device("cpu")
    assert type(nn.Linear(2, 2).to(torch.float64).weight) is nn.Parameter


# ----------------------------------------------------------------------------------------- labelflow on it


def same(found: lf.Mix, expected: lf.Mix) -> None:
    """Bit for bit."""
    for name in ("partner", "share", "sources", "drawn", "box"):
        here, there = getattr(found, name), getattr(expected, name)
        assert (here is None) == (there is None)
        assert here is None or torch.equal(here.host, there)


@pytest.mark.parametrize("name", VARIANTS)
def test_mixers(name: str) -> None:
    mixer, images = VARIANTS[name], torch.rand(4, 3, 32, 32)
    shown = {"importance": torch.rand(4, 8, 8)} if isinstance(mixer, Shown) else {}
    mixer = mixer.mixer if isinstance(mixer, Shown) else mixer
    expected = mixer(images, seeded(), **shown)
    with pretending() as log:
        there, shown = images.to(DEVICE), {key: value.to(DEVICE) for key, value in shown.items()}
        log.clear()
        mix = mixer(there, seeded(), **shown)
        mixed, labels = mix.apply(there), mix.blend(there.mean((2, 3)))
        mix.tokens((4, 4)), mix.move(there.mean(1).flatten(1)[:, :16].unsqueeze(-1), (4, 4))
    check(log)
    same(mix, expected)
    assert torch.equal(mixed.host, expected.apply(images))
    assert_close(labels.host, expected.blend(images.mean((2, 3))))


def test_every_mixer_was_among_them() -> None:
    tried = [mixer.mixer if isinstance(mixer, Shown) else mixer for mixer in VARIANTS.values()]
    assert set(MIXERS.values()) <= set(map(type, tried))


@pytest.mark.parametrize("name", [name for name in MIXERS if name != "puzzlemix"])
def test_what_is_drawn_for_256_images_is_small_enough_to_be_copied_at_once(name: str) -> None:
    with pretending() as log:
        images, importance = torch.zeros(1).to(DEVICE).expand(256, 3, 224, 224), torch.rand(256, 14, 14).to(DEVICE)
        mixer = MIXERS[name]()
        log.clear()
        mixer(images, seeded(), **({"importance": importance} if isinstance(mixer, Guided) else {}))
    check(log)


def test_timm_s_mixup() -> None:
    mixup = lf.Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, mode="elem", correct_lam=False, num_classes=5)
    with pretending() as log:
        aligned, images = lf.Aligned(build("vit")).to(DEVICE), images_for("vit").to(DEVICE)
        classes = torch.tensor([0, 3, 1, 4]).to(DEVICE)
        log.clear()
        mixup(images, classes, seeded())
        mixup.align(aligned, images, classes, seeded())
    check(log)


GUIDED = {  # each mixer that asks a guide, and each guide
    "smmix": "smmix",
    "puzzlemix": "puzzlemix(blocks=(2, 4))",
    "saliencymix": "saliencymix",
    "saliencymix, spectral": "saliencymix(kind='spectral')",
    "guided_mixup": "guided_mixup",
    "guided_mixup, gradient": "guided_mixup(by='gradient')",
    "attentive_cutmix": "attentive_cutmix(model='test_efficientnet', init='', size=64)",
}


def guided_step(text: str) -> Log:
    """What is noticed when a batch is mixed for the second time: a guide may get ready at the first."""
    mixer = make_mixer(text)
    with pretending() as log:
        student = lf.Student(build("vit")).to(DEVICE)
        images, classes = images_for("vit").to(DEVICE), lf.soft_labels(torch.arange(4), 5).to(DEVICE)
        batch = UnmixedBatch(images, classes, student, (0.4, 0.5, 0.6), (0.2, 0.3, 0.2))
        for _ in range(2):
            log.clear()
            mix_batch(mixer, batch, seeded())
    return log


@pytest.mark.parametrize("name", GUIDED)
def test_guides(name: str) -> None:
    check(guided_step(GUIDED[name]))


def test_every_guide_was_among_them() -> None:
    assert {make_mixer(text).mixer.guide.split("(")[0] for text in GUIDED.values()} == set(GUIDES)


def test_a_constant_that_the_host_waits_with_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "per_channel", lambda values, like: like.new_tensor(values).reshape(-1, 1, 1))
    assert places(guided_step("saliencymix")) == {"test_device.py:test_a_constant_that_the_host_waits_with_is_found"}


def step(target: Any, mixer: Any, log: Log) -> None:
    """A forward and a backward pass; what is noticed of the second ones."""
    student, images = target.student(build("vit")).to(DEVICE).train(), images_for("vit").to(DEVICE)
    known = truth_for(4, 16)
    dense = known.dense.to(torch.device(DEVICE)) if target.dense else None
    clean, taught = torch.rand(4, 5).to(DEVICE), Taught(torch.rand(4, 5).to(DEVICE))
    truth = Truth(known.classes.to(DEVICE), dense, clean=clean, taught=taught)
    z, to_labels = torch.rand(4, 16, 5).to(DEVICE), getattr(target, "token_labels", None)
    shown = {"importance": torch.rand(4, 4, 4).to(DEVICE)} if isinstance(mixer, Guided) else {}
    for _ in range(2):
        log.clear()
        mix = mixer(images, seeded(), **shown)
        tokens = to_labels(z, seeded()) if to_labels else None
        lf.total(target(student(mix.apply(images), mix), truth._replace(tokens=tokens), mix)).backward()


@pytest.mark.parametrize("mixer", [lf.CutMix(per="sample"), lf.MixToken(patch=8), lf.SMMix()])
@pytest.mark.parametrize("name", TARGETS)
def test_targets(name: str, mixer: Any) -> None:
    with pretending() as log:
        step(TARGETS[name](), mixer, log)
    check(log)


def test_a_batch_in_the_next_one() -> None:
    images, labels = torch.rand(4, 3, 32, 32), torch.rand(8, 5)
    expected = lf.RecursiveMix(per="sample")(images, seeded(), earlier=images)
    with pretending() as log:
        target = TARGETS["recursive_mix"]()
        student, there = target.student(build("vit")).to(DEVICE).train(), images.to(DEVICE)
        truth = Truth(labels.to(DEVICE), earlier=labels[:4].to(DEVICE))
        log.clear()
        mix = lf.RecursiveMix(per="sample")(there, seeded(), earlier=there)
        mix.move(there.flatten(2).mean(1)[:, :16].unsqueeze(-1).repeat(2, 1, 1), (4, 4))
        mixed = mix.apply(torch.cat([there, there]))
        lf.total(target(student(mixed, mix), truth, mix)).backward()
    check(log)
    same(mix, expected)
    assert torch.equal(mixed.host, expected.apply(torch.cat([images, images])))


@pytest.mark.parametrize("family", ["vit", "swin", "pvt v2", "lvvit"])
@pytest.mark.parametrize("need", sorted(lf.Student.NEEDS))
def test_needs(need: str, family: str) -> None:
    images = images_for(family)
    mix = box_mix(images)
    with pretending() as log:
        student, there = lf.Student(build(family), {need}).to(DEVICE), images.to(DEVICE)
        mix = lf.Mix(mix.partner.to(DEVICE), mix.share.to(DEVICE))
        for _ in range(2):
            log.clear()
            student(there, mix)
    check(log)


@torch.no_grad()
@pytest.mark.parametrize("family", SOME)
def test_families(family: str) -> None:
    """Some of timm's models make the host wait themselves."""
    images = images_for(family, batch=2)
    share = box_mix(images).share
    with pretending() as log:
        aligned, there, share = lf.Aligned(build(family)).to(DEVICE), images.to(DEVICE), share.to(DEVICE)
        log.clear()
        aligned(there, share)
    assert not [place for place in places(log) if place.startswith("labelflow/")]
    assert not log.meetings
    assert not log.host_scalars
    assert not log.doubles


def test_batches() -> None:
    """Bytes in pinned memory, which are normalised and erased there, to the same bits."""
    data = Data(image_size=32, erasing=1.0, workers=0)
    batch = next(train_batches(World("train", 8, 32), data, batch=8, micro_batch=8, updates=1, seed=0))
    expected = batch.to(torch.device("cpu")).images
    with pretending() as log:
        for _ in range(2):
            log.clear()
            found = pin_memory(batch).to(torch.device(DEVICE, 0))
    check(log)
    assert torch.equal(found.images.host, expected)


# ----------------------------------------------------------------------------------------- the engine on it


class Watched(Classification):
    """Notes how many waits there were before each micro-batch. They come from pinned memory, as where there is CUDA."""

    log: Log

    def train_batches(self, *how: Any) -> Iterator[PixelBatch]:
        self.waits: list[int] = []
        for batch in super().train_batches(*how):
            self.waits.append(len(self.log.waits))
            yield pin_memory(batch)


@pytest.fixture
def _own_accelerator() -> Iterator[None]:
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def run(folder: Path, **changes: Any) -> tuple[Watched, Log]:
    """7 updates of two micro-batches, of which an epoch has 6: a line of metrics after 4, a checkpoint after 5."""
    recipe = Recipe(
        model="vit_tiny_patch16_224(patch_size=8, embed_dim=24, depth=2, num_heads=3)",
        target="tl_align",
        mixer="0.5*cutmix(per='sample', pairing='permute') + 0.5*mixup",
        data=Data(source="world(train=48, val=12)", image_size=32, test_crop=1.0, workers=0),
        training=Training(
            epochs=0,
            updates=7,
            batch=8,
            micro_batch=4,
            warmup_epochs=0,
            log_updates=4,
            save_updates=5,
            ema=0.9,
            clip=1.0,
        ),
    ).change(**changes)
    task = Watched(recipe)
    with pretending() as log:
        task.log = log
        accelerator = make_accelerator(recipe.training, folder)
        for state in (PartialState, AcceleratorState):  # Accelerate knows no such device
            state._shared_state["device"] = torch.device(DEVICE, 0)
        train(task, recipe.training, Run(folder), accelerator, Progress(quiet=True))
    return task, log


@pytest.mark.usefixtures("_own_accelerator")
@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_the_engine(precision: str, tmp_path: Path) -> None:
    task, log = run(tmp_path, precision=precision)
    start, after_update_3 = task.waits[1], task.waits[6]  # the first micro-batch makes constants, which others use
    assert not log.waits[start:after_update_3]
    assert {note.place.function for note in log.waits[start:]} == set(NOW_AND_THEN)
    assert not log.meetings
    assert not log.host_scalars
    assert not log.doubles
    assert [line["kind"] for line in Run(tmp_path).metrics()] == ["train", "train", "train", "eval", "train", "eval"]
    assert all(isinstance(weight, OnDevice) for weight in task.student.parameters())


@pytest.mark.usefixtures("_own_accelerator")
def test_a_wait_in_each_step_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def looked_at(terms: list[lf.Term]) -> Tensor:
        loss = lf.total(terms)
        assert loss.item() > 0
        return loss

    monkeypatch.setattr(loop, "total", looked_at)
    task, log = run(tmp_path, updates=2)
    found = [note.place.function for note in log.waits[task.waits[0] : task.waits[1]]]
    assert set(found) == {"test_device.py:test_a_wait_in_each_step_is_found"}
