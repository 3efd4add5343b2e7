"""Labels through any convolutional network, by watching what it calls: TL-Align's Table 10, call by call.

A model runs as it is, under a mode that sees every function of torch it calls, with the tensors it calls it with.
Each call that has a map among its arguments is written down, then all are gone through once more with labels. So a
kernel is the one that is really applied, paddings and concatenations are those that really happen, and nothing is
known of modules and their classes.

Shapes: B batch, h×w places, C classes.
"""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from convolution_oracles import windows

POINTWISE = set(
    """batch_norm chunk clamp clamp_min contiguous dropout elu gelu group_norm hardsigmoid hardswish hardtanh leaky_relu
    relu relu6 reshape sigmoid silu split sum tanh""".split()  # noqa: SIM905
)  # or among channels


@dataclass(eq=False)
class Call:
    """A map, as what a function has made of other maps."""

    function: str
    maps: list["Call"]
    channels: list[int]  # of those maps
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    grid: tuple[int, int]  # of what it returns
    is_stem: bool = False
    readers: int = 0


class Recording(TorchFunctionMode):
    """What happens to a map of pixels."""

    def __init__(self, images: Tensor) -> None:
        super().__init__()
        self.is_stem = False  # inside a convolution between blocks
        self.start = Call("input", [], [], (), {}, (images.shape[2], images.shape[3]))
        self.calls = [self.start]
        self.maps: dict[int, Call] = {id(images): self.start}
        self.alive = [images]  # or another tensor might get its id

    def __torch_function__(self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        named = kwargs or {}
        output = function(*args, **named)
        name = function.__name__.strip("_")
        given = (
            list(args[0])
            if name in ("cat", "stack")
            else [args[0]]
            if name == "expand_as"
            else [*args, *named.values()]
        )
        given = [one for one in given if isinstance(one, Tensor) and id(one) in self.maps]
        tensors = [one for one in (output if isinstance(output, tuple | list) else [output]) if isinstance(one, Tensor)]
        is_gate = name == "mean" or (name.startswith("adaptive") and output.shape[2:] == (1, 1))  # it has no place
        if not given or not tensors or is_gate:
            return output
        maps = [self.maps[id(one)] for one in given]
        for one in maps:
            one.readers += 1
        channels = [one.shape[1] for one in given]
        for tensor in tensors:
            call = Call(name, maps, channels, args, named, (tensor.shape[-2], tensor.shape[-1]), self.is_stem)
            self.calls.append(call)
            self.maps[id(tensor)] = call
            self.alive.append(tensor)
        return output

    def labels(self, last: Tensor, pixels: Tensor) -> Tensor:
        """Of a tensor that was made under this mode, from those of the pixels: (B, H, W, C) -> (B, h, w, C)"""
        found = {self.start: pixels}
        for call in self.calls[1:]:
            found[call] = _moved(call, found)
        return found[self.maps[id(last)]]


def _moved(call: Call, found: dict[Call, Tensor]) -> Tensor:
    first = found[call.maps[0]]
    if call.function in ("add", "iadd", "radd"):  # residual: Norm(Y + g(Y))
        return _norm(sum(found[term] for term in _terms(call)))
    if call.function in ("mul", "imul", "rmul", "stack"):
        return _norm(sum(found[factor] for factor in call.maps))
    if call.function == "cat":
        return _norm(sum(found[part] * width for part, width in zip(call.maps, call.channels, strict=True)))
    if call.function == "conv2d":  # spatial mixing: Norm(|W|)·Y
        _, kernel, stride, padding, dilation, _ = _convolution(*call.arguments, **call.named)
        if call.is_stem and stride != (1, 1):  # aggregation
            kernel = torch.ones_like(kernel)
        return _convolved(first, kernel, stride, padding, dilation)
    if call.function in ("max_pool2d", "avg_pool2d"):  # aggregation: Norm(ΣY)
        _, size, stride, padding = _window(*call.arguments, **call.named)
        return _norm(windows(first, size, stride, (padding, padding), call.grid))
    if call.function == "adaptive_avg_pool2d":
        return F.adaptive_avg_pool2d(first.permute(0, 3, 1, 2), call.grid).permute(0, 2, 3, 1)
    if call.function == "pixel_unshuffle":
        return windows(first, call.arguments[1], call.arguments[1], (0, 0), call.grid)
    if call.function == "pad":  # mirrored, or without a label whatever the value
        return F.pad(first.permute(0, 3, 1, 2), call.arguments[1], call.named.get("mode", "constant")).permute(
            0, 2, 3, 1
        )
    if call.function == "interpolate":
        return F.interpolate(first.permute(0, 3, 1, 2), *call.arguments[1:], **call.named).permute(0, 2, 3, 1)
    if call.function == "getitem":
        return first[(slice(None), *call.arguments[1][2:])]
    if call.function in POINTWISE:
        assert call.grid == first.shape[1:3]
        return first
    raise NotImplementedError(f"what does {call.function} do to labels?")


def _norm(labels: Tensor) -> Tensor:
    return labels / labels.sum(-1, keepdim=True).clamp_min(1e-30)  # padding has none


def _terms(call: Call) -> list[Call]:
    """(a + b) + c is a sum of three, unless a + b is used elsewhere, too."""
    parts = [
        _terms(term)
        if term.function in ("add", "iadd", "radd") and term.readers == 1 and len(term.maps) > 1
        else [term]
        for term in call.maps
    ]
    return [term for part in parts for term in part]


def _convolved(labels: Tensor, kernel: Tensor, stride: Any, padding: Any, dilation: Any) -> Tensor:
    """The mean over output channels of (|K| ∗ Y) / (|K| ∗ 1), where 1 is every place that has a label."""
    kernel = kernel.abs().sum(1, keepdim=True)
    there = (labels.sum(-1) > 0).float()
    maps = torch.cat([there.unsqueeze(1), labels.permute(0, 3, 1, 2)], 1)  # (B, 1 + C, h, w)
    mixed = F.conv2d(maps.flatten(0, 1).unsqueeze(1), kernel, None, stride, padding, dilation)
    mixed = mixed.unflatten(0, maps.shape[:2])  # (B, 1 + C, channels, i, j)
    return (mixed[:, 1:] / mixed[:, :1].clamp_min(1e-30)).mean(2).permute(0, 2, 3, 1)


def _convolution(input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
                 groups: int = 1) -> tuple[Any, ...]:  # fmt: skip
    stride = (stride, stride) if isinstance(stride, int) else tuple(stride)
    return input, weight, stride, padding, dilation, groups


def _window(input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, *_: Any, **__: Any) -> tuple[Any, ...]:
    size, stride, padding = (
        one if isinstance(one, int) else one[0] for one in (kernel_size, stride or kernel_size, padding)
    )
    return input, size, stride, padding


def average_label(model: nn.Module, images: Tensor, pixels: Tensor, stem: Iterable[str]) -> Tensor:
    """What a model that averages its last map reads: (B, 1, C). `stem` has the names of convolutions between blocks,
    with * for any part."""
    with torch.no_grad(), Recording(images) as recording, contextlib.ExitStack() as hooks:
        for name, module in model.named_modules():
            if isinstance(module, nn.Conv2d) and any(fnmatchcase(name, pattern) for pattern in stem):
                hooks.callback(module.register_forward_pre_hook(lambda *_: setattr(recording, "is_stem", True)).remove)
                hooks.callback(module.register_forward_hook(lambda *_: setattr(recording, "is_stem", False)).remove)
        features = model.forward_features(images)
        if hasattr(model, "pre_logits"):  # VGG
            features = model.pre_logits(features)
    return recording.labels(features, pixels).mean((1, 2)).unsqueeze(1)
