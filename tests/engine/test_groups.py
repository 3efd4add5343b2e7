"""Which parameters weight decay shrinks, and the learning rates of layers and heads: timm's own groups."""

from dataclasses import replace
from typing import Any

import pytest
import timm
import torch
from timm.optim import create_optimizer_v2
from torch import nn
from torch.testing import assert_close

from labelflow.align import Student
from labelflow.engine import Training
from labelflow.engine.groups import norms_apart, parameter_groups
from labelflow.engine.optim import make_optimizer, make_schedule
from labelflow.models.create import create
from labelflow.tasks.dense.task import DenseStudent
from labelflow.tasks.detect.model import make_detector
from labelflow.tasks.detect.settings import Sizes
from labelflow.tasks.segment.model import make_segmenter

SWIN = "swin_tiny_patch4_window7_224(embed_dim=16, depths=(1, 1, 2, 1), num_heads=(1, 2, 4, 8), window_size=4)"
MODELS = {
    "vit_tiny_patch16_224": {"embed_dim": 24, "depth": 4, "num_heads": 3},
    "deit_tiny_distilled_patch16_224": {"embed_dim": 24, "depth": 2, "num_heads": 3},
    "swin_tiny_patch4_window7_224": {"embed_dim": 16, "depths": (1, 1, 2, 1), "num_heads": (1, 2, 4, 8)},
    "cait_xxs24_224": {"embed_dim": 24, "depth": 3, "num_heads": 3},
    "convnext_atto": {"dims": (8, 16, 24, 32), "depths": (1, 1, 2, 1)},
    "resnet10t": {},
}


class Small(nn.Module):
    """Something of everything that is decayed or not."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.ones(1, 4, 6))
        self.linear, self.norm = nn.Linear(6, 6), nn.LayerNorm(6)
        self.inside = nn.Sequential(
            nn.Conv2d(3, 6, 1), nn.BatchNorm2d(6), nn.LayerNorm(6, bias=False), nn.GroupNorm(2, 6)
        )

    def no_weight_decay(self) -> set[str]:
        return {"positions"}


EXEMPT = {
    "vectors": {"positions", "linear.bias", "norm.weight", "norm.bias", "inside.0.bias"}
    | {f"inside.{layer}.{part}" for layer in (1, 3) for part in ("weight", "bias")}
    | {"inside.2.weight"},
    "norms": {"positions", "norm.weight", "norm.bias", "inside.2.weight"},
    "nothing": set(),
}


@pytest.mark.parametrize("exempt", EXEMPT)
def test_what_weight_decay_shrinks(exempt: str) -> None:
    """With gradients of zero and decay alone, AdamW multiplies by 1 - lr·decay, or leaves things as they are."""
    model = Small()
    for parameter in model.parameters():
        nn.init.ones_(parameter)
    training = Training(lr=0.1, lr_batch=0, weight_decay=0.5, exempt=exempt)  # type: ignore[arg-type]
    optimizer = make_optimizer(model, training)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        assert_close(parameter.detach(), torch.full_like(parameter, 1.0 if name in EXEMPT[exempt] else 0.95), msg=name)


def test_every_parameter_is_in_one_group() -> None:
    model = Small()
    groups = norms_apart(model, 0.3)
    assert [group["weight_decay"] for group in groups] == [0.3, 0.0]
    found = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(found) == sorted(map(id, model.parameters()))
    plain = norms_apart(nn.Linear(2, 2), 0.3)  # which names nothing
    assert [len(group["params"]) for group in plain] == [2, 0]


def scales(groups: list[dict[str, Any]], model: nn.Module) -> dict[str, tuple[float, float]]:
    """Of each parameter that is in a group: lr_scale and weight decay."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = [
        (names[id(one)], (group.get("lr_scale", 1.0), group["weight_decay"]))
        for group in groups
        for one in group["params"]
    ]
    assert len(dict(found)) == len(found)  # each is in one group
    return dict(found)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("floor", [0.0, 0.4])
def test_layers_have_the_rates_that_timm_gives_them(name: str, floor: float) -> None:
    model = timm.create_model(name, num_classes=5, **MODELS[name])
    training = Training(layer_decay=0.7, layer_decay_min_scale=floor, weight_decay=0.05)
    expected = create_optimizer_v2(
        model, "adamw", lr=1.0, weight_decay=0.05, layer_decay=0.7, layer_decay_min_scale=floor
    )
    groups = parameter_groups(Student(model), training)
    assert scales(groups, model) == scales(expected.param_groups, model)
    assert [set(map(id, group["params"])) for group in groups] == [
        set(map(id, group["params"])) for group in expected.param_groups
    ]


def test_the_layers_of_a_vit() -> None:
    """The stem, four blocks, of which the last has the final norm, and the classifier: methods_new.md, 11."""
    model = timm.create_model("vit_tiny_patch16_224", num_classes=5, **MODELS["vit_tiny_patch16_224"])
    found = {
        name: scale
        for name, (scale, _) in scales(parameter_groups(Student(model), Training(layer_decay=0.5)), model).items()
    }
    assert {found[name] for name in found if name.startswith("head.")} == {1.0}
    assert {found[name] for name in found if name.startswith(("blocks.3.", "norm."))} == {0.5}
    assert {found[name] for name in found if name.startswith("blocks.0.")} == {0.5**4}
    assert {found["cls_token"], found["pos_embed"], found["patch_embed.proj.weight"]} == {0.5**5}


@pytest.mark.parametrize("exempt", EXEMPT)
def test_what_is_exempt_from_weight_decay_is_so_in_every_layer(exempt: str) -> None:
    student = Student(
        timm.create_model("vit_tiny_patch16_224", num_classes=5, **MODELS["vit_tiny_patch16_224"]), {"tokens"}
    )
    plain, layered = (
        scales(parameter_groups(student, Training(exempt=exempt, layer_decay=decay)), student)  # type: ignore[arg-type]
        for decay in (1.0, 0.5)
    )
    assert plain.keys() == layered.keys() == dict(student.named_parameters()).keys()
    assert {name: decay for name, (_, decay) in plain.items()} == {name: decay for name, (_, decay) in layered.items()}
    assert {scale for scale, _ in plain.values()} == {1.0}


@pytest.mark.parametrize("layer_decay", [1.0, 0.5])
def test_heads_have_a_rate_of_their_own(layer_decay: float) -> None:
    """The classifier, also where there are two, and what the student has beside its model; nothing else."""
    for name, heads, needs in (
        ("vit_tiny_patch16_224", ("model.head.", "token_head."), {"tokens"}),
        ("deit_tiny_distilled_patch16_224", ("model.head.", "model.head_dist."), ()),
        ("lvvit_t", ("model.head.", "model.aux_head."), {"tokens"}),
    ):
        student = Student(create(name, num_classes=5, embed_dim=24, depth=2, num_heads=3), needs)
        before, after = (
            scales(parameter_groups(student, Training(layer_decay=layer_decay, head_lr=head_lr)), student)
            for head_lr in (1.0, 10.0)
        )
        for parameter, (scale, decay) in before.items():
            assert after[parameter] == (scale * 10 if parameter.startswith(heads) else scale, decay)
        assert all(scale == 1 for parameter, (scale, _) in before.items() if parameter.startswith(heads))


def test_a_swins_final_norm_is_not_its_classifier() -> None:
    model = timm.create_model("swin_tiny_patch4_window7_224", num_classes=5, **MODELS["swin_tiny_patch4_window7_224"])
    found = scales(parameter_groups(Student(model), Training(head_lr=10.0)), model)
    assert {name for name, (scale, _) in found.items() if scale == 10} == {"head.fc.weight", "head.fc.bias"}


@pytest.mark.parametrize("kind", ["segmenter", "detector"])
def test_layers_of_a_backbone_with_heads(kind: str) -> None:
    """The backbone's layers as timm counts them; heads, and the norms between, have the full rate."""
    if kind == "segmenter":
        model, backbone = make_segmenter(SWIN, classes=3, width=8), "levels.model."
    else:
        model, backbone = make_detector(SWIN, classes=2, sizes=Sizes(channels=8, hidden=16)), "backbone.levels.model."
    found = {
        name: scale
        for name, (scale, _) in scales(
            parameter_groups(DenseStudent(model), Training(layer_decay=0.5, head_lr=3)), model
        ).items()
    }
    assert {scale for name, scale in found.items() if not name.startswith(backbone)} == {3.0}
    layers = (
        "layers.3.",
        "layers.2.blocks.1.",
        "layers.2.blocks.0.",
        "layers.1.blocks.",
        "layers.0.blocks.",
        "patch_embed.",
    )
    for number, layer in enumerate(layers, 1):
        own = {scale for name, scale in found.items() if name.startswith(backbone + layer) and "downsample" not in name}
        assert own == {0.5**number}, layer


def test_warm_up_and_schedule_multiply_all_rates() -> None:
    student = Student(timm.create_model("vit_tiny_patch16_224", num_classes=5, **MODELS["vit_tiny_patch16_224"]))
    training = Training(
        epochs=4, lr=1.0, lr_batch=0, min_lr=0.2, warmup_epochs=1, warmup_lr=0.1, layer_decay=0.5, head_lr=2.0
    )
    plain = replace(training, layer_decay=1.0, head_lr=1.0)
    optimizer = make_optimizer(student, training)
    schedule, plain_schedule = (
        make_schedule(optimizer, training, 5),
        make_schedule(make_optimizer(student, plain), plain, 5),
    )
    for update in (0, 3, 5, 12, 19):
        lr = plain_schedule(update)
        assert_close(schedule(update), lr)
        for group in optimizer.param_groups:
            assert_close(group["lr"], lr * group["lr_scale"])
    assert {group["lr_scale"] for group in optimizer.param_groups} == {2.0, *(0.5**layer for layer in range(1, 6))}


def test_what_is_frozen_is_in_no_group() -> None:
    for exempt in EXEMPT:
        for layer_decay in (1.0, 0.5):
            student = Student(
                timm.create_model("vit_tiny_patch16_224", num_classes=5, **MODELS["vit_tiny_patch16_224"])
            )
            student.model.blocks.requires_grad_(False)  # type: ignore[union-attr]
            groups = parameter_groups(student, Training(exempt=exempt, layer_decay=layer_decay))  # type: ignore[arg-type]
            trained = {name for name, _ in student.named_parameters() if not name.startswith("model.blocks.")}
            assert scales(groups, student).keys() == trained
            assert all(group["params"] for group in groups)


class Silent(nn.Module):
    """A student whose model says nothing about itself."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layer_decay": 0.7}, "--layer-decay needs a model .* timm's group_matcher; Linear does not"),
        ({"head_lr": 2.0}, "--head-lr needs a model .* timm's get_classifier; Linear does not"),
    ],
)
def test_models_that_do_not_say_what_their_parts_are(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parameter_groups(Silent(), Training(**settings))


def test_a_least_scale_is_for_layer_decay() -> None:
    with pytest.raises(ValueError, match="layer_decay_min_scale is for --layer-decay, which is 1"):
        Training(layer_decay_min_scale=0.1)
