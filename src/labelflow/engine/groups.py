"""Groups of parameters: with weight decay and without, each layer and head with its own learning rate."""

from collections.abc import Collection
from typing import Any

from timm.optim import param_groups_layer_decay, param_groups_weight_decay
from torch import nn

from labelflow.engine.freezing import classifier_parameters
from labelflow.engine.settings import Training


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
