"""Schedules against their formulas, and which parameters weight decay shrinks."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from labelflow.engine import Training
from labelflow.engine.optim import check_optimizer, make_optimizer, make_schedule, shorten_warmup


def rates(per_epoch: int, **settings: Any) -> list[float]:
    """The learning rate of every update, asked in a random order: it is a function of the update's number alone."""
    counted = {"epochs": 0} if "updates" in settings else {}
    training = Training(batch=8, micro_batch=8, lr_batch=0, **counted, **settings)
    length = training.updates or training.epochs * per_epoch
    optimizer = make_optimizer(nn.Linear(2, 2), training)
    schedule = make_schedule(optimizer, training, per_epoch)
    found = {}
    for update in torch.randperm(length).tolist():
        found[update] = schedule(update)
        assert {group["lr"] for group in optimizer.param_groups} == {found[update]}
    return [found[update] for update in range(length)]


def line(at: int, length: int, warmup: int, lr: float, min_lr: float, warmup_lr: float) -> float:
    """Up from warmup_lr towards lr; then where a line from lr, at update 0, to min_lr, at the end, is by then."""
    if at < warmup:
        return warmup_lr + (lr - warmup_lr) * at / warmup
    return min_lr + (lr - min_lr) * (1 - at / length)


numbers = st.floats(0, 1, allow_subnormal=False)


@given(st.integers(2, 12), st.integers(1, 5), st.integers(0, 20), st.tuples(numbers, numbers, numbers))
def test_a_line(epochs: int, per_epoch: int, warmup: int, values: tuple[float, float, float]) -> None:
    length, (warmup_lr, min_lr, lr) = epochs * per_epoch, sorted(values)
    warmup = min(warmup, length - 1)
    how: dict[str, Any] = {"schedule": "linear", "warmup_epochs": 0, "warmup_updates": warmup}
    how |= {"lr": lr, "min_lr": min_lr, "warmup_lr": warmup_lr}
    expected = [line(at, length, warmup, lr, min_lr, warmup_lr) for at in range(length)]
    assert_close(rates(per_epoch, epochs=epochs, **how), expected)
    assert_close(rates(per_epoch, updates=length, **how), expected)  # told in updates: the same
    assert_close(rates(1, updates=length, **how), expected)  # whatever an epoch is


def test_the_papers_line() -> None:
    """160,000 updates, of which 1,500 climb from a millionth of the rate: recipes.md, 3."""
    how: dict[str, Any] = {"schedule": "linear", "lr": 6e-5, "min_lr": 0.0, "warmup_lr": 6e-11}
    training = Training(epochs=0, updates=160_000, warmup_updates=1500, warmup_epochs=0, lr_batch=0, **how)
    schedule = make_schedule(make_optimizer(nn.Linear(2, 2), training), training, 1263)
    assert_close(schedule(0), 6e-11)
    assert_close(schedule(750), 6e-11 + (6e-5 - 6e-11) / 2)
    assert_close(schedule(1500), 6e-5 * (1 - 1500 / 160_000))
    assert_close(schedule(80_000), 3e-5)
    assert_close(schedule(159_999), 6e-5 / 160_000)


@given(st.integers(1, 9))
def test_the_rate_is_divided_by_ten_at_the_first_updates_of_epochs_27_and_33(per_epoch: int) -> None:
    found = rates(per_epoch, epochs=36, schedule="steps", lr=1e-4, warmup_epochs=0)
    expected = [1e-4] * 27 * per_epoch + [1e-5] * 6 * per_epoch + [1e-6] * 3 * per_epoch
    assert_close(found, expected)


def test_other_steps_and_a_warm_up() -> None:
    how: dict[str, Any] = {"schedule": "steps", "steps": (0.5,), "lr": 1e-4, "warmup_lr": 1e-7}
    found = rates(5, epochs=4, warmup_epochs=0, warmup_updates=4, **how)
    climb = [1e-7 + (1e-4 - 1e-7) * at / 4 for at in range(4)]
    assert_close(found, [*climb, *[1e-4] * 6, *[1e-5] * 10])
    by_epoch = rates(5, epochs=4, warmup_epochs=0, schedule_step="epoch", **how)
    assert_close(by_epoch, [1e-4] * 10 + [1e-5] * 10)
    halved = rates(5, epochs=4, warmup_epochs=0, **{**how, "steps": (0.25, 0.5), "step_factor": 0.5})
    assert_close(halved, [1e-4] * 5 + [5e-5] * 5 + [2.5e-5] * 10)


def test_a_cosine_counted_in_updates() -> None:
    found = rates(
        7, updates=20, schedule="cosine", lr=1.0, min_lr=0.1, warmup_epochs=0, warmup_updates=3, warmup_lr=0.0
    )
    cosine = [0.1 + 0.45 * (1 + math.cos(math.pi * at / 20)) for at in range(3, 20)]
    assert_close(found, [0.0, 1 / 3, 2 / 3, *cosine])
    constant = rates(7, updates=6, schedule="constant", lr=0.5, warmup_epochs=0, warmup_updates=2, warmup_lr=0.1)
    assert_close(constant, [0.1, 0.3, 0.5, 0.5, 0.5, 0.5])


def test_warm_up_epochs_are_counted_in_updates_where_no_updates_are_told() -> None:
    how: dict[str, Any] = {"schedule": "linear", "lr": 1.0, "min_lr": 0.0, "warmup_lr": 0.0}
    one = rates(3, updates=12, warmup_epochs=2, **how)
    assert one == rates(3, updates=12, warmup_epochs=0, warmup_updates=6, **how)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": (0.9, 0.5)}, "increasing fractions of the run"),
        ({"steps": (0.5, 1.0)}, "fractions of the run"),
        ({"steps": (0.0,)}, "fractions of the run"),
        ({"step_factor": 0.0}, r"step_factor must lie in \(0, 1\]"),
        ({"updates": -1}, "updates must be ≥ 0"),
        ({"warmup_updates": -1}, "warmup_updates must be ≥ 0"),
        ({"updates": 10}, "not as 300 epochs and 10 updates; set --updates 0, or --epochs 0"),
        ({"updates": 10, "epochs": 0, "cooldown_epochs": 2}, "not as 2 epochs and 10 updates"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"warmup_updates": 10}, "set --warmup-epochs or --warmup-updates to 0"),
        ({"epochs": 0, "updates": 10, "warmup_epochs": 0, "schedule_step": "epoch"}, "--schedule-step update"),
        ({"warmup_epochs": 0, "warmup_updates": 10, "schedule_step": "epoch"}, "--schedule-step update"),
        ({"warmup_epochs": -1}, "warmup_epochs must be ≥ 0"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Training(**settings)


@pytest.mark.parametrize(
    ("settings", "shortened"),
    [
        ({"updates": 8, "epochs": 0, "warmup_updates": 8}, {"warmup_updates": 2}),
        ({"updates": 8, "epochs": 0, "warmup_epochs": 2}, {"warmup_updates": 2}),
        ({"epochs": 1, "warmup_epochs": 2}, {"warmup_updates": 1}),
        ({"epochs": 6, "warmup_epochs": 6}, {"warmup_updates": 6}),
        ({"epochs": 2, "warmup_updates": 500}, {"warmup_updates": 2}),
        ({"epochs": 8, "warmup_epochs": 20, "schedule_step": "epoch"}, {"warmup_epochs": 2}),
        ({"epochs": 1, "warmup_epochs": 1, "schedule_step": "epoch"}, {"warmup_epochs": 0}),
    ],
)
def test_a_warm_up_as_long_as_the_run_becomes_a_quarter_of_it(
    settings: dict[str, Any], shortened: dict[str, Any]
) -> None:
    """Four updates make an epoch."""
    training = Training(**{"warmup_epochs": 0, **settings})
    used = shorten_warmup(training, 4)
    assert used == replace(training, **{"warmup_epochs": 0, "warmup_updates": 0, **shortened})
    assert shorten_warmup(used, 4) == used
    optimizer = make_optimizer(nn.Linear(2, 2), used)
    asked, stored = (make_schedule(optimizer, one, 4) for one in (training, used))
    assert [asked(update) for update in range(8)] == [stored(update) for update in range(8)]


def test_a_shorter_warm_up_stays() -> None:
    for training in (Training(epochs=6, warmup_epochs=5), Training(epochs=1, warmup_epochs=0, warmup_updates=3)):
        assert shorten_warmup(training, 4) is training


@pytest.mark.parametrize(("name", "can"), [("adamw", True), ("adam", True), ("sgd", True), ("lamb", False)])
def test_optimizers_are_fused_on_cuda_alone(name: str, can: bool) -> None:
    """The others stay as they were, and so do their numbers."""
    fused = {
        device: make_optimizer(nn.Linear(2, 2), Training(optimizer=name), device).defaults.get("fused")
        for device in ("cpu", "cuda", "xpu", "mps")
    }
    assert fused == {"cpu": None, "cuda": can or None, "xpu": None, "mps": None}


def test_adagrad_has_no_fused_kernel_for_cuda() -> None:
    """Though its class takes the argument."""
    assert not make_optimizer(nn.Linear(2, 2), Training(optimizer="adagrad"), "cuda").defaults["fused"]


def test_betas() -> None:
    own, given = (make_optimizer(nn.Linear(2, 2), Training(betas=betas)) for betas in ((), (0.8, 0.95)))
    assert own.defaults["betas"] == (0.9, 0.999)
    assert {group["betas"] for group in given.param_groups} == {(0.8, 0.95)}
    three = make_optimizer(nn.Linear(2, 2), Training(optimizer="adan", betas=(0.98, 0.92, 0.99)))
    assert three.defaults["betas"] == (0.98, 0.92, 0.99)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "adamv"}, "no optimizer 'adamv'; did you mean"),
        ({"optimizer": "adahessian"}, "the optimizer adahessian needs second derivatives"),
        ({"optimizer": "adafactorbv"}, "the optimizer adafactorbv cannot be saved in checkpoints"),
        ({"optimizer": "cadafactorbvc"}, "the optimizer cadafactorbvc cannot be saved"),
        ({"optimizer": "sgd", "betas": (0.9, 0.95)}, "the optimizer sgd has no betas: omit --betas"),
        ({"betas": (0.9, 0.95, 0.99)}, "the optimizer adamw has 2 betas, not 3: --betas 0.9 0.95 0.99"),
    ],
)
def test_optimizers_that_do_not_exist_or_take_no_such_betas(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_optimizer(Training(**settings))
