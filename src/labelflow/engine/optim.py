"""Optimiser and schedule, with timm."""

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from timm.optim import (
    create_optimizer_v2,
    get_optimizer_class,
    get_optimizer_info,
    list_optimizers,
    param_groups_layer_decay,
    param_groups_weight_decay,
)
from timm.scheduler import CosineLRScheduler, MultiStepLRScheduler, PolyLRScheduler
from timm.scheduler.scheduler import Scheduler
from torch import nn

from labelflow.engine.freezing import classifier_parameters
from labelflow.engine.settings import Training
from labelflow.spec import known

FUSED = (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD)  # what torch has in one kernel for CUDA


def check_optimizer(training: Training) -> None:
    """ValueError if timm has no such optimizer, or it takes no such betas."""
    name, count = training.optimizer, len(training.betas)
    known(name, list_optimizers(), "optimizer")
    info = get_optimizer_info(name)
    if count and not info.has_betas:
        raise ValueError(f"the optimizer {name} has no betas: omit --betas")
    if count and count != info.num_betas:
        raise ValueError(f"the optimizer {name} has {info.num_betas} betas, not {count}: --betas {training.betas}")


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


def parameter_groups(student: nn.Module, training: Training) -> list[dict[str, Any]]:
    """What is trained, by its weight decay and by the scale of its learning rate (`lr_scale`, which timm's schedules
    multiply with). ValueError if the model does not say what its layers are, or what its classifier is."""
    apart = {"vectors": _vectors_apart, "norms": norms_apart, "nothing": _together}[training.exempt]
    groups = apart(student, training.weight_decay)
    if training.layer_decay < 1:
        in_model = set(map(id, student.model.parameters()))  # type: ignore[union-attr]
        groups = [*_by_layer(student.model, training), *(_only(group, in_model, False) for group in groups)]
    if training.head_lr != 1:
        heads = _heads(student)
        scale = training.head_lr
        groups = [
            {**_only(group, heads, own), "lr_scale": group.get("lr_scale", 1.0) * (scale if own else 1.0)}
            for group in groups
            for own in (False, True)
        ]
    return [group for group in groups if group["params"]]


def norms_apart(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Two parameter groups, with weight decay and without: layer norms and what `no_weight_decay` names have none."""
    exempt = _norms(model) | _named(model)
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[name not in exempt].append(parameter)
    return [
        {"params": groups[True], "weight_decay": decay},
        {"params": groups[False], "weight_decay": 0.0},
    ]


def _vectors_apart(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    return param_groups_weight_decay(model, decay, no_weight_decay_list=_named(model))


def _together(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    return [{"params": [one for one in model.parameters() if one.requires_grad], "weight_decay": decay}]


def _by_layer(model: Any, training: Training) -> list[dict[str, Any]]:
    """timm's groups, in which a layer's learning rate is layer_decay of that of the next one."""
    if not hasattr(model, "group_matcher"):
        raise ValueError(
            f"--layer-decay needs a model that says what its layers are, with timm's group_matcher; "
            f"{type(model).__name__} does not"
        )
    exempt = {"vectors": _named(model), "norms": _norms(model) | _named(model), "nothing": set()}[training.exempt]
    return param_groups_layer_decay(
        model,
        training.weight_decay,
        no_weight_decay_list=exempt,
        weight_decay_exclude_1d=training.exempt == "vectors",
        layer_decay=training.layer_decay,
        min_scale=training.layer_decay_min_scale,
    )


def _heads(student: Any) -> set[int]:
    """ids of the classifier's parameters, and of those that the student has beside its model."""
    classifier = classifier_parameters(student.model)
    if not classifier:
        raise ValueError(
            f"--head-lr needs a model that says what its classifier is, with timm's get_classifier; "
            f"{type(student.model).__name__} does not"
        )
    in_model = set(map(id, student.model.parameters()))
    return classifier | {id(one) for one in student.parameters() if id(one) not in in_model}


def _only(group: dict[str, Any], ids: Collection[int], inside: bool) -> dict[str, Any]:
    """A group with those of its parameters that are among some, or with the others."""
    return {**group, "params": [one for one in group["params"] if (id(one) in ids) == inside]}


def _norms(model: nn.Module) -> set[str]:
    norms = [name for name, module in model.named_modules() if isinstance(module, nn.LayerNorm)]
    return {f"{norm}.{part}" for norm in norms for part in ("weight", "bias")}


def _named(model: nn.Module) -> set[str]:
    named: Any = getattr(model, "no_weight_decay", set)
    return set(named())


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
        return MultiStepLRScheduler(optimizer, ends, decay_rate=0.1, **how)
    if training.schedule == "linear":
        return PolyLRScheduler(optimizer, length, power=1.0, lr_min=training.min_lr, **how)
    lowest = training.scaled_lr if training.schedule == "constant" else training.min_lr
    return CosineLRScheduler(optimizer, length, lr_min=lowest, **how)
