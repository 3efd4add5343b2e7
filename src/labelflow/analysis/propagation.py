"""Modes of torch that watch a ViT from outside, while it runs as it is.

`Watching` keeps the attention of every block. `Propagation` also puts a relevance rule (Chefer et al., "Transformer
Interpretability Beyond Attention Visualization", CVPR 2021) in the place of each function's gradient, so that what
autograd brings back to a tensor is its relevance.

Shapes: B batch, A heads, N tokens, D width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

TINY = 1e-9  # what is not larger is taken for 0, by which nothing is divided


class Watching(TorchFunctionMode):
    """Keeps the attention of every block, before dropout. Fused attention is worked out step by step meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.attention: list[Tensor] = []  # of each block, (B, A, N, N)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is F.scaled_dot_product_attention:
            with self:
                return _attend(*args, **kwargs)
        output = self.call(function, args, kwargs)
        if function.__name__ == "softmax":
            self.attention.append(output)
        return output

    def call(self, function: Any, args: Any, kwargs: Any) -> Any:
        return function(*args, **kwargs)


def _attend(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """softmax(Q·Kᵀ/√d)·V; in evaluation there is no dropout."""
    assert options.get("attn_mask") is None, "a ViT masks nothing"
    return (query * query.shape[-1] ** -0.5 @ key.transpose(-2, -1)).softmax(-1) @ value


class Propagation(Watching):
    """From the first attention on, what comes back to a tensor that depends on the image is its relevance.

    The images must require a gradient and the weights must not: that tells what depends on the image.
    """

    def call(self, function: Any, args: Any, kwargs: Any) -> Any:
        name = function.__name__
        if self.attention and name in RULES:
            call = Call.of(function, args, kwargs)
            if call.places:
                return _Rule.apply(call, RULES[name], *call.inputs)
        output = function(*args, **kwargs)
        if self.attention and name not in MOVES and any(map(_depends_on_image, tree_leaves(output))):
            raise ValueError(
                f"there is no relevance rule for torch's {name!r}, which this model uses; method='gradient' needs none"
            )
        return output


@dataclass(frozen=True)
class Call:
    """A call of one of torch's functions, as a function of those arguments that depend on the image."""

    function: Any
    arguments: list[Any]
    structure: TreeSpec  # into which arguments are put
    places: list[int]  # where those that depend on the image are among them

    @classmethod
    def of(cls, function: Any, args: Any, kwargs: Any) -> "Call":
        arguments, structure = tree_flatten((args, kwargs))
        places = [place for place, argument in enumerate(arguments) if _depends_on_image(argument)]
        return cls(function, arguments, structure, places)

    @property
    def inputs(self) -> list[Tensor]:
        return [self.arguments[place] for place in self.places]

    def __call__(self, *inputs: Tensor) -> Tensor:
        arguments = list(self.arguments)
        for place, value in zip(self.places, inputs, strict=True):
            arguments[place] = value
        args, kwargs = tree_unflatten(arguments, self.structure)
        return self.function(*args, **kwargs)


def _depends_on_image(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


class _Rule(torch.autograd.Function):
    """A function as it is, with a rule that divides the relevance of its output among its inputs as its gradient."""

    @staticmethod
    def forward(ctx: Any, call: Call, rule: "Rule", *inputs: Tensor) -> Tensor:
        ctx.call, ctx.rule = call, rule
        ctx.save_for_backward(*inputs)
        return call(*inputs)

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> Any:
        return None, None, *ctx.rule(ctx.call, relevance, *ctx.saved_tensors)


Rule = Callable[..., list[Tensor]]  # a call, the relevance of its output, its inputs -> the relevance of each input


def proportional(function: Callable[..., Tensor], relevance: Tensor, *inputs: Tensor) -> list[Tensor]:
    """To each input what it contributes to the output z = function(…): x ⊙ (∂z/∂x)ᵀ(R/z).

    >>> proportional(torch.add, torch.tensor([1.0]), torch.tensor([3.0]), torch.tensor([1.0]))
    [tensor([0.7500]), tensor([0.2500])]
    """
    with torch.enable_grad():
        inputs = tuple(x.detach().requires_grad_() for x in inputs)
        output = function(*inputs)
    gradients = torch.autograd.grad(output, inputs, ratio(relevance, output.detach()))
    return [x.detach() * gradient for x, gradient in zip(inputs, gradients, strict=True)]


def ratio(part: Tensor, whole: Tensor) -> Tensor:
    """0 where there is no whole."""
    nothing = whole.abs() <= TINY
    return (part / whole.masked_fill(nothing, 1)).masked_fill(nothing, 0)


def _contribute(call: Call, relevance: Tensor, *inputs: Tensor) -> list[Tensor]:
    return proportional(call, relevance, *inputs)


def _linear(call: Call, relevance: Tensor, x: Tensor) -> list[Tensor]:
    """By contributions that raise the output (α = 1): z = W⁺x⁺ + W⁻x⁻, without the bias."""
    weight = call.arguments[1]
    raising, lowering = weight.clamp(min=0), weight.clamp(max=0)

    def raised(above: Tensor, below: Tensor) -> Tensor:
        return F.linear(above, raising) + F.linear(below, lowering)

    above, below = proportional(raised, relevance, x.clamp(min=0), x.clamp(max=0))
    return [above + below]


def _matmul(call: Call, relevance: Tensor, *inputs: Tensor) -> list[Tensor]:
    """Each factor explains the whole product: half to each."""
    return [share / len(inputs) for share in proportional(call, relevance, *inputs)]


def _add(call: Call, relevance: Tensor, *inputs: Tensor) -> list[Tensor]:
    """By contributions; then branches are rescaled, of every sample, so that their sums have the sign of ΣR and amount
    to it together. A constant takes nothing, like a bias."""
    if len(inputs) == 1:
        return [relevance]
    shares = proportional(call, relevance, *inputs)
    sums = [_sum_of_sample(share) for share in shares]
    size = torch.stack(sums).abs().sum(0)
    return [
        share * total.sign() * ratio(_sum_of_sample(relevance), size) for share, total in zip(shares, sums, strict=True)
    ]


def _sum_of_sample(values: Tensor) -> Tensor:
    """(B, …) -> (B, 1, …)"""
    return values.sum(tuple(range(1, values.ndim)), keepdim=True)


def _multiply(call: Call, relevance: Tensor, *inputs: Tensor) -> list[Tensor]:
    """A scale passes relevance on; of two factors that depend on the image, each takes half, as in a matmul."""
    return [(relevance / len(inputs)).sum_to_size(x.shape) for x in inputs]


def _keep(call: Call, relevance: Tensor, x: Tensor) -> list[Tensor]:
    """What works on each token passes its relevance on."""
    return [relevance]


RULES: dict[str, Rule] = {
    "linear": _linear,
    "matmul": _matmul,
    "add": _add,
    "mul": _multiply,
    "div": _multiply,
    "mean": _contribute,
    **dict.fromkeys(["softmax", "layer_norm", "gelu", "relu", "silu", "sigmoid", "dropout"], _keep),
}
# What moves values about, and leaves them as they are: its gradient moves relevance back.
MOVES = {
    *("__get__", "__getitem__", "cat", "chunk", "contiguous", "expand", "flatten", "permute", "reshape", "split"),
    *("squeeze", "transpose", "unbind", "unflatten", "unsqueeze", "view"),
}
