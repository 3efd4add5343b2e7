"""Optimiser and schedule, with timm."""

from collections.abc import Callable

import torch
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from torch import nn

from labelflow.engine.settings import Training


def make_optimizer(model: nn.Module, training: Training) -> torch.optim.Optimizer:
    return create_optimizer_v2(
        model,
        opt=training.optimizer,
        lr=training.scaled_lr,
        weight_decay=training.weight_decay,
        momentum=training.momentum,
    )


def make_schedule(
    optimizer: torch.optim.Optimizer, training: Training, updates_per_epoch: int
) -> Callable[[int], float]:
    """Sets the learning rate for an update, and returns it: a function of the update's number alone."""
    unit = updates_per_epoch if training.schedule_step == "update" else 1
    cosine = CosineLRScheduler(
        optimizer,
        t_initial=max(training.epochs * unit, 2),  # timm warns of 1
        lr_min=training.scaled_lr if training.schedule == "constant" else training.min_lr,
        warmup_t=training.warmup_epochs * unit,
        warmup_lr_init=training.warmup_lr,
        t_in_epochs=False,
    )
    lag = training.schedule_lag * unit

    def schedule(update: int) -> float:
        cosine.step_update(max(0, update // (updates_per_epoch // unit) - lag))
        return float(optimizer.param_groups[0]["lr"])

    return schedule
