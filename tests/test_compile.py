"""torch.compile: the same labels, and no graph break where no gradient checkpointing is used."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

import labelflow as lf
from families import SOME
from helpers import box_mix, build, images_for
from labelflow.adapters.registry import MODELS, MODULES, Observed
from labelflow.mixers import make_mixer


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


DEEPER = ("vit", "deit distilled", "swin", "swin, padded, fused", "pvt", "pvt v2")
WHOLE = (*DEEPER, "convnext", "merging", "mixer", "resnet", "transformers vit", "volo")  # a kind of graph each


@pytest.mark.parametrize("family", WHOLE)
def test_no_graph_break(family: str) -> None:
    model, images = build(family), images_for(family)
    share = box_mix(images).share
    aligned = lf.Aligned(model)
    expected = aligned(images, share)
    backend = "aot_eager" if family in DEEPER else "eager"
    logits, arrived = torch.compile(aligned, fullgraph=True, backend=backend)(images, share)
    assert_close(logits, expected[0], atol=1e-5, rtol=1e-5)
    assert_close(arrived, expected[1], atol=1e-6, rtol=0)
    assert torch.equal(model(images), expected[0])  # nothing left behind


@pytest.mark.parametrize("family", [family for family in SOME if family not in WHOLE])
def test_no_graph_break_in_an_adapter(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its functions for each kind of module, without the model around it, which takes much longer."""
    images = images_for(family)
    share, aligned = box_mix(images).share, lf.Aligned(build(family))
    expected = aligned(images, share)
    compiled = set()

    def in_one_graph(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: nn.Module, *given: Any) -> Any:
            seen = [tuple(value.taps) for value in given if isinstance(value, Observed)]
            if (what := (function, type(module), *seen)) in compiled:
                return function(module, *given)
            compiled.add(what)
            return torch.compile(function, fullgraph=True, backend="eager", dynamic=False)(module, *given)

        return call

    for kind, module in MODULES.items():
        monkeypatch.setitem(MODULES, kind, replace(module, move=in_one_graph(module.move)))
    for kind, whole in MODELS.items():
        monkeypatch.setitem(MODELS, kind, replace(whole, heads=in_one_graph(whole.heads)))
    logits, arrived = aligned(images, share)
    assert len(compiled) >= 3  # an embedding, a block, the classifiers
    assert torch.equal(logits, expected[0])
    assert_close(arrived, expected[1], atol=1e-6, rtol=0)


def test_a_training_step_with_inductor() -> None:
    model, images = build("vit").train(), images_for("vit")
    mix = box_mix(images)
    y = lf.soft_labels(torch.tensor([0, 1, 2, 3]), 5, 0.1)
    gradients = []
    for student in (lf.Student(model, {"flow"}), torch.compile(lf.Student(model, {"flow"}), fullgraph=True)):
        model.zero_grad()
        output = student(mix.apply(images), mix)
        assert output.flow is not None
        F.cross_entropy(output.logits, mix.blend(y, output.flow.heads[:, 0, 0])).backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    for eager, compiled in zip(*gradients, strict=True):
        assert_close(compiled, eager, atol=1e-5, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # dynamo's own look at what it wraps
@pytest.mark.parametrize("family", ["vit", "swin"])
def test_with_gradient_checkpointing(family: str) -> None:
    """Correct; graph breaks are allowed."""
    model, images = build(family).train(), images_for(family)
    for module in model.modules():  # drop-path would draw differently when compiled
        if hasattr(module, "drop_prob"):
            module.drop_prob = 0.0
    mix = box_mix(images)
    _, expected = lf.Aligned(model)(images, mix.share)
    model.set_grad_checkpointing(True)
    compiled = torch.compile(lf.Aligned(model), backend="aot_eager")
    logits, arrived = compiled(images, mix.share)
    assert_close(arrived, expected, atol=1e-6, rtol=0)
    logits.sum().backward()
    recomputed = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    model.set_grad_checkpointing(False)
    model(images).sum().backward()
    for parameter, gradient in zip(model.parameters(), recomputed, strict=True):
        assert_close(gradient, parameter.grad, atol=1e-4, rtol=1e-4)


def test_the_plain_model_compiles_to_itself() -> None:
    model, images = build("vit"), images_for("vit")
    aligned = lf.Aligned(model)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert torch.equal(compiled(images), model(images))
    aligned(images, box_mix(images).share)
    assert torch.equal(compiled(images), model(images))


@pytest.mark.parametrize("needs", [{"flow"}, {"tokens", "cells"}])
def test_mixers_may_change_without_compiling_again(needs: set[str]) -> None:
    """Twenty steps, each with a mixer drawn anew, in which shares are boxes, constants, patches or expanded."""
    model, images = build("vit").train(), images_for("vit")
    student = lf.Student(model, needs)
    compiled: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        compiled.append(len(inputs))
        return graph.forward

    student.compile(backend=backend)
    mixers = [
        lf.CutMix(),
        lf.MixUp(),
        lf.CutMix(per="batch"),
        lf.MixUp(per="batch"),
        make_mixer("random_patches"),
        make_mixer("block_patches"),
        make_mixer("cutmix(correct_lam=False)"),
    ]
    draws = torch.Generator().manual_seed(0)
    counts = []
    for step in range(20):
        mixer = mixers[int(torch.randint(len(mixers), (), generator=draws))]
        mix = mixer(images, torch.Generator().manual_seed(step))
        student(mix.apply(images), mix)
        counts.append(len(compiled))
    assert counts == counts[:1] * 20


def test_shares_have_one_layout() -> None:
    layouts = {
        lf.Mix(torch.tensor([1, 0]), share).share.stride()
        for share in (torch.rand(2, 1, 4, 6), torch.rand(1, 1, 4, 6).expand(2, -1, -1, -1), torch.rand(2, 1, 6, 4).mT)
    }
    assert layouts == {(24, 24, 6, 1)}
