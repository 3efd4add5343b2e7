"""Optimiser and schedule, with timm."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from timm.optim import create_optimizer_v2, get_optimizer_class, list_optimizers
from timm.scheduler import CosineLRScheduler, MultiStepLRScheduler, PolyLRScheduler
from timm.scheduler.scheduler import Scheduler
from torch import nn

from labelflow.engine.settings import Training
from labelflow.spec import known

FUSED = (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD)  # what torch has in one kernel for CUDA


def check_optimizer(name: str) -> None:
    """ValueError if timm has no such optimizer."""
    known(name, list_optimizers(), "optimizer")


def make_optimizer(model: nn.Module, training: Training, device: str = "cpu") -> torch.optim.Optimizer:
    """device: the type of that on which the model is going to be trained; on CUDA, fused where torch can."""
    can_fuse = device == "cuda" and get_optimizer_class(training.optimizer, bind_defaults=False) in FUSED
    groups = {"norms": partial(norms_apart, decay=training.weight_decay), "nothing": _together}  # vectors: timm's own
    return create_optimizer_v2(
        model,
        opt=training.optimizer,
        lr=training.scaled_lr,
        weight_decay=training.weight_decay,
        momentum=training.momentum,
        param_group_fn=groups.get(training.exempt),
        **({"fused": True} if can_fuse else {}),
    )


def norms_apart(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Two parameter groups, with weight decay and without: layer norms and what `no_weight_decay` names have none."""
    named: Any = getattr(model, "no_weight_decay", set)
    norms = [name for name, module in model.named_modules() if isinstance(module, nn.LayerNorm)]
    exempt = {f"{norm}.{part}" for norm in norms for part in ("weight", "bias")} | named()
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, parameter in model.named_parameters():
        groups[name not in exempt].append(parameter)
    return [
        {"params": groups[True], "weight_decay": decay},
        {"params": groups[False], "weight_decay": 0.0},
    ]


def _together(model: nn.Module) -> list[dict[str, Any]]:
    return [{"params": list(model.parameters())}]


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
    """Sets the learning rate for an update, and returns it: a function of the update's number alone."""
    unit = updates_per_epoch if training.schedule_step == "update" else 1
    length, warmup = schedule_lengths(shorten_warmup(training, updates_per_epoch), updates_per_epoch)
    rates = _rates(optimizer, training, max(length, 2), warmup)  # timm warns of 1
    lag = training.schedule_lag * unit

    def schedule(update: int) -> float:
        rates.step_update(max(0, update // (updates_per_epoch // unit) - lag))
        return float(optimizer.param_groups[0]["lr"])

    return schedule


def _rates(optimizer: torch.optim.Optimizer, training: Training, length: int, warmup: int) -> Scheduler:
    how = {"warmup_t": warmup, "warmup_lr_init": training.warmup_lr, "warmup_prefix": False, "t_in_epochs": False}
    if training.schedule == "steps":
        ends = [round(part * length) + 1 for part in training.steps]  # timm counts from 1
        return MultiStepLRScheduler(optimizer, ends, decay_rate=0.1, **how)
    if training.schedule == "linear":
        return PolyLRScheduler(optimizer, length, power=1.0, lr_min=training.min_lr, **how)
    lowest = training.scaled_lr if training.schedule == "constant" else training.min_lr
    return CosineLRScheduler(optimizer, length, lr_min=lowest, **how)
