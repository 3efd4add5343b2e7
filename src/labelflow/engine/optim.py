"""Optimiser and schedule, with timm."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from timm.optim import AdafactorBigVision, create_optimizer_v2, get_optimizer_class, get_optimizer_info, list_optimizers
from timm.scheduler import CosineLRScheduler, MultiStepLRScheduler, PolyLRScheduler
from timm.scheduler.scheduler import Scheduler
from torch import nn

from labelflow.engine.groups import parameter_groups
from labelflow.engine.settings import Training
from labelflow.spec import known

FUSED = (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD)  # what torch has in one kernel for CUDA


def check_optimizer(training: Training) -> None:
    """ValueError if timm has no such optimizer, or it takes no such betas."""
    name, count = training.optimizer, len(training.betas)
    known(name, list_optimizers(), "optimizer")
    info = get_optimizer_info(name)
    if info.second_order:
        raise ValueError(f"the optimizer {name} needs second derivatives, which are not computed; choose another")
    if get_optimizer_class(name, bind_defaults=False) is AdafactorBigVision:  # its state holds a dtype
        raise ValueError(f"the optimizer {name} cannot be saved in checkpoints; choose another, such as adafactor")
    if count and not info.has_betas:
        raise ValueError(f"the optimizer {name} has no betas: omit --betas")
    if count and count != info.num_betas:
        given = " ".join(map(str, training.betas))
        raise ValueError(f"the optimizer {name} has {info.num_betas} betas, not {count}: --betas {given}")


def make_optimizer(student: nn.Module, training: Training, device: str = "cpu") -> torch.optim.Optimizer:
    """device: the type of that on which the model is going to be trained; on CUDA, fused where torch can."""
    can_fuse = device == "cuda" and get_optimizer_class(training.optimizer, bind_defaults=False) in FUSED
    return create_optimizer_v2(
        student,
        opt=training.optimizer,
        lr=training.scaled_lr,
        weight_decay=training.weight_decay,
        momentum=training.momentum,
        param_group_fn=partial(parameter_groups, training=training),
        **({"fused": True} if can_fuse else {}),
        **({"betas": training.betas} if training.betas else {}),
    )


def shorten_warmup(training: Training, updates_per_epoch: int) -> Training:
    """The same, but a warm-up that is not shorter than the run becomes a quarter of it."""
    length, warmup = schedule_lengths(training, updates_per_epoch)
    if warmup < length:
        return training
    if training.schedule_step == "epoch":
        return replace(training, warmup_epochs=length // 4)
    return replace(training, warmup_epochs=0, warmup_updates=length // 4)


def schedule_lengths(training: Training, updates_per_epoch: int) -> tuple[int, int]:
    """Of the run and its warm-up: in updates, or in epochs if the learning rate changes once an epoch."""
    unit = updates_per_epoch if training.schedule_step == "update" else 1
    return training.updates or training.epochs * unit, training.warmup_updates or training.warmup_epochs * unit


def make_schedule(
    optimizer: torch.optim.Optimizer, training: Training, updates_per_epoch: int
) -> Callable[[int], float]:
    """Sets the learning rate for an update, and returns it: a function of the update's number alone. Groups with an
    lr_scale get that part of it."""
    unit = updates_per_epoch if training.schedule_step == "update" else 1
    length, warmup = schedule_lengths(shorten_warmup(training, updates_per_epoch), updates_per_epoch)
    rates = _rates(optimizer, training, max(length, 2), warmup)  # timm warns of 1
    lag = training.schedule_lag * unit

    def schedule(update: int) -> float:
        rates.step_update(max(0, update // (updates_per_epoch // unit) - lag))
        first = optimizer.param_groups[0]
        return float(first["lr"]) / first.get("lr_scale", 1.0)

    return schedule


def _rates(optimizer: torch.optim.Optimizer, training: Training, length: int, warmup: int) -> Scheduler:
    how = {"warmup_t": warmup, "warmup_lr_init": training.warmup_lr, "warmup_prefix": False, "t_in_epochs": False}
    if training.schedule == "steps":
        ends = [round(part * length) + 1 for part in training.steps]  # timm counts from 1
        return MultiStepLRScheduler(optimizer, ends, decay_rate=training.step_factor, **how)
    if training.schedule == "linear":
        return PolyLRScheduler(optimizer, length, power=1.0, lr_min=training.min_lr, **how)
    lowest = training.scaled_lr if training.schedule == "constant" else training.min_lr
    return CosineLRScheduler(optimizer, length, lr_min=lowest, **how)
