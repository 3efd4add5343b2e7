"""Labels through any module made of convolutions, pools, sums, products and point-wise operations, along its graph.

`trace` turns a module into a plan when it is attached, from its torch.fx graph: plain data, so that it can be copied,
pickled and compiled. `move` then takes a map of labels through the plan, with the module's weights of the moment.

    convolution          Y ← Norm(|W|)·Y, the mean over output channels      `flow.convolve`
    pool                 Y ← Norm(ΣYᵢ) over its windows                      `flow.aggregate`
    sum, product         Y ← Norm(Y₁ + Y₂ + …)
    concatenation        Y ← Norm(D₁Y₁ + D₂Y₂ + …) of maps with Dᵢ channels
    what has no place: a gate, a global average, a number                    none, and leaves alone what it multiplies
    anything point-wise, or among channels                                   Y ← Y
    a module with an adapter, such as attention                              what that says

A block so followed takes part with one line: `register(Block, taps=graph.taps, plan=graph.trace, idle=graph.idle)(
graph.move)`, or `graph.follow(Block)`.
"""

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters import convolutions
from labelflow.adapters.graph_rules import Step, Tracer
from labelflow.adapters.registry import MODULES, Move, Observed, Tap, adapter_of, known_module, register
from labelflow.flow import Labels


def trace(module: nn.Module) -> list[Step]:
    """A module's graph as steps on maps. What it cannot read is a ValueError that names it."""
    return Tracer().read(module)


def trace_features(model: nn.Module) -> list[Step]:
    """Of a whole model, up to its head: the plan of one whose modules form no chain."""
    return Tracer("forward_features").read(model)


def path(model: nn.Module) -> list[nn.Module]:
    """For `register_model`: the modules that move labels in a model's `forward_features`, in order."""
    steps = Tracer("forward_features", whole_blocks=True).read(model)
    if any(step.inputs != (number,) or not step.module for number, step in enumerate(steps[1:])):
        raise ValueError(f"the modules of {type(model).__name__} do not form a chain")
    return [model.get_submodule(step.module) for step in steps[1:]]


def taps(module: nn.Module) -> dict[str, Tap]:
    """What the adapters of modules inside of it want to see: `attn/query`."""
    inside = [(name, part, adapter_of(part)) for name, part in module.named_modules() if name]
    return {
        f"{name}/{tap}": where
        for name, part, adapter in inside
        if adapter is not None
        for tap, where in adapter.taps(part).items()
    }


def move(module: nn.Module, observed: Observed, labels: Labels) -> Labels:
    return labels.with_map(_run(module, observed, labels.map))


def idle(module: nn.Module, observed: Observed, labels: Labels) -> Labels:
    """What is left of a block that `layers=` leaves out: nothing, or plain means of windows if it changes the grid."""
    left = labels.with_map(_run(module, observed, labels.map, still=True))
    return labels if left.grid == labels.grid else left


def embed(module: nn.Module, observed: Observed, labels: Labels) -> Labels:
    """A stem, in which convolutions with a stride are taken as aggregation."""
    return labels.with_map(_run(module, observed, labels.map, embedding=True))


def follow(*classes: type[nn.Module]) -> None:
    """Register blocks that are followed along their graph."""
    register(*classes, taps=taps, plan=trace, idle=idle)(move)


def _run(module: nn.Module, observed: Observed, labels: Tensor, still: bool = False, embedding: bool = False) -> Tensor:
    """A map of labels (B, h, w, K) through a plan."""
    results = [labels]
    for step in observed.plan[1:]:
        given = [results[place] for place in step.inputs]
        if step.operation == "combine":
            weights, without_shortcut = step.options
            results.append(_combine(given, weights if observed.keep_residual or still else without_shortcut))
        elif step.operation in FUNCTIONS:
            results.append(FUNCTIONS[step.operation](given, *step.options))
        else:
            part = module.get_submodule(step.module)
            if step.operation == "module":
                results.append(_inside(part, step.module, observed, given[0], still))
            else:
                plain = still or (embedding and getattr(part, "stride", 1) not in (1, (1, 1)))
                results.append(LAYERS[step.operation](part, given[0], plain))
    return results[-1]


def _inside(part: nn.Module, name: str, observed: Observed, labels: Tensor, still: bool) -> Tensor:
    """A module with an adapter of its own: (B, h, w, K) -> (B, i, j, K)"""
    adapter = MODULES[known_module(part)]
    found = {tap.removeprefix(f"{name}/"): value for tap, value in observed.taps.items() if tap.startswith(f"{name}/")}
    inner = Observed(found, slice(None), observed.keep_residual, observed.image_label)
    go: Move = adapter.idle if still else adapter.move
    return go(part, inner, Labels(labels.flatten(1, 2), (labels.shape[1], labels.shape[2]))).map


def _combine(maps: list[Tensor], weights: tuple[int, ...]) -> Tensor:
    total = sum(weight * labels for labels, weight in zip(maps, weights, strict=True) if weight)
    assert isinstance(total, Tensor)
    return flow.normalise(total)


def _window(maps: list[Tensor], kernel: Any, stride: Any, padding: Any, ceil: bool) -> Tensor:
    size, step, around = (convolutions.pair(sides) for sides in (kernel, stride, padding))
    return flow.aggregate(maps[0], size, step, around, ceil)


def _resize(maps: list[Tensor], size: Any, scale: Any, mode: str, align_corners: bool | None) -> Tensor:
    """To a size, by a factor, or to the size of a second map."""
    if len(maps) == 2:
        size = tuple(maps[1].shape[1:3])
    return F.interpolate(maps[0].permute(0, 3, 1, 2), size, scale, mode, align_corners).permute(0, 2, 3, 1)


def _pad(maps: list[Tensor], *padding: int) -> Tensor:
    return F.pad(maps[0], (0, 0, *padding))  # no label there


def _crop(maps: list[Tensor], *places: tuple[int | None, int | None, int | None]) -> Tensor:
    return maps[0][(slice(None), *(slice(*place) for place in places))]


FUNCTIONS: dict[str, Callable[..., Tensor]] = {"window": _window, "resize": _resize, "pad": _pad, "crop": _crop}
LAYERS: dict[str, Callable[[Any, Tensor, bool], Tensor]] = {
    "convolve": convolutions.convolve,
    "pool": convolutions.pool,
    "blur": convolutions.blur,
    "surround": convolutions.surround,
    "unshuffle": convolutions.unshuffle,
}
