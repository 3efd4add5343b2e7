"""Hooks that move labels along with a model's tokens.

`Follower` hooks the modules that a model's tokens pass through. While `run` runs, and only then, each hook moves the
labels the way its module has just moved the tokens. The model itself is left alone.

Shapes: B batch, C channels, H×W pixels, N tokens, K sources, h×w the grid of the patch embedding.
"""

import inspect
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from labelflow.adapters.registry import MODELS, MODULES, Observed, known_model, known_module, load_optional
from labelflow.flow import Labels
from labelflow.tokens import embedding_of

Start = Callable[[tuple[int, int]], Tensor]  # a grid (h, w) -> the labels of its tokens (B, h·w, K)
Enter = Callable[[Labels], Labels]  # the labels that come to a block -> those that it is to move
Leave = Callable[[str, Labels], None]  # sees a block's name, and the labels after it


class Flow(NamedTuple):
    """The labels that arrive: (own, partner) for K = 2 sources."""

    heads: Tensor  # (B, heads, K), one row for each classifier; a distilled DeiT has two
    tokens: Tensor | None  # (B, h·w, K), one row for each patch token, where they were asked for


class Layer(NamedTuple):
    """The labels after one block."""

    name: str  # of the block in the model, such as "blocks.3"
    share: Tensor  # (B, N): own share of each token; those without a place in the image come first
    grid: tuple[int, int]

    @property
    def map(self) -> Tensor:
        """(B, h, w)"""
        return self.share[:, self.share.shape[1] - self.grid[0] * self.grid[1] :].unflatten(1, self.grid)


class Follower:
    """Hooks on a model that move labels along with its tokens while `run` runs, and do nothing otherwise.

    The hooks go with `owner`. Hooks and state are plain data, so that copies and pickles have their own, wired alike.
    """

    def __init__(
        self,
        owner: object,
        model: nn.Module,
        layers: Iterable[int] | None,
        residual: bool,
        label_prefix: bool = True,
    ) -> None:
        self.model_kind = known_model(model)  # kinds, not adapters: functions do not always pickle
        self.residual = residual
        self.label_prefix = label_prefix
        self.labels: Labels | None = None  # None: idle
        self.start: Start | None = None
        self.image_label: Tensor | None = None  # (B, K): the label of the whole image
        self.taps: dict[str, Tensor] = {}
        self.enter: Enter | None = None
        self.leave: Leave | None = None
        self.head_tokens = 0  # how many leading tokens are enough in the end; 0: all are needed
        self.fired: list[str] = []

        MODELS[self.model_kind].head_tokens(model)  # refuses what cannot be followed
        names = {module: name for name, module in model.named_modules()}
        path = MODELS[self.model_kind].path(model)
        self.steps = [names[module] for module in path]  # what has to fire, in order
        inside = f"{names.get(embedding_of(model), self.steps[0])}."
        embedding = [step for step in self.steps if f"{step}.".startswith(inside)]
        self.entry = embedding[-1] if embedding else self.steps[0]  # after it, tokens are there
        kinds = {module: known_module(module) for module in path}
        blocks = [module for module in path if MODULES[kinds[module]].layer]
        if not blocks:
            raise ValueError(f"the path of {type(model).__name__} has no block: register one with layer=True")
        left_out = set(blocks) - set(_choose(blocks, layers))
        handles: list[RemovableHandle] = []
        for module, kind in kinds.items():
            taps = {} if module in left_out else MODULES[kind].taps(module)
            plan = MODULES[kind].plan
            move = _Move(
                self,
                kind,
                names[module],
                last=module is blocks[-1],
                idle=module in left_out,
                plan=plan(module) if plan else None,
            )
            # First of all hooks: FSDP's own, which shard the weights again, have to come after it.
            handles.append(module.register_forward_hook(move, prepend=True, with_kwargs=True))
            # In front of it, since an adapter may watch its module itself.
            for tap, (watched, side) in taps.items():
                watch = _Watch(self, tap, side, _position(watched, side))
                handles.append(watched.register_forward_hook(watch, prepend=True, with_kwargs=True))
        weakref.finalize(owner, _remove, handles)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        load_optional(self.model_kind)  # another process may not have met such a model

    def run(
        self,
        model: nn.Module,
        images: Tensor,
        share: Tensor,
        tokens: bool = False,
        start: Start | None = None,
        enter: Enter | None = None,
        leave: Leave | None = None,
        call: Callable[[Tensor], Any] | None = None,
    ) -> tuple[Any, Flow]:
        """The model's own output, or what `call` makes of it, and the labels that arrive with it.

        share (B, 1, H, W) are the pixels' labels; `start` gives the tokens others, once they leave the patch embedding,
        `enter` before every block. `leave` sees them after it.
        """
        _check(images, share)
        adapter = MODELS[self.model_kind]
        head_tokens = adapter.head_tokens(model)  # refuses a pooling that cannot be followed, before anything is set
        self.start, self.enter, self.leave = start, enter, leave
        self.head_tokens, self.fired = 0 if tokens else head_tokens, []
        self.labels = Labels.of_pixels(share.detach())
        self.image_label = self.labels.values.mean(1)
        try:
            logits = (call or model)(images)
            arrived = self.labels
        except AssertionError as error:
            if self.fired:
                raise
            size = f"{images.shape[2]}×{images.shape[3]}"  # before any token: timm's way to refuse an image size
            raise ValueError(f"{type(model).__name__} refused images of {size} pixels: {error}") from error
        finally:
            self.labels, self.image_label, self.taps = None, None, {}
            self.start, self.enter, self.leave = None, None, None
        if self.fired != self.steps:
            missing = [step for step in self.steps if step not in self.fired]
            raise RuntimeError(
                f"labels followed {len(self.fired)} of {len(self.steps)} modules: {type(model).__name__} did not run "
                f"{', '.join(missing) or 'each of them once, in order'}"
            )
        with torch.no_grad(), torch.autocast(arrived.values.device.type, enabled=False):
            heads = adapter.heads(model, arrived.values)
            return logits, Flow(heads, arrived.map.flatten(1, 2) if tokens else None)

    def move(self, module: nn.Module, tokens: Any, hook: "_Move") -> None:
        assert self.labels is not None
        assert self.image_label is not None
        adapter = MODULES[hook.kind]
        with torch.no_grad(), torch.autocast(self.labels.values.device.type, enabled=False):
            rows = slice(self.head_tokens if hook.last and self.head_tokens else None)
            observed = Observed(self.taps, rows, self.residual, self._prefix_label(), hook.plan)
            is_sequence = isinstance(tokens, Tensor) and tokens.ndim == 3 and len(tokens) == len(self.labels.values)
            if adapter.layer and is_sequence:  # not windows, nor TNT's pixels, which are more than B
                self.labels = observed.join(self.labels, tokens.shape[1])
            if adapter.layer and self.enter is not None:
                self.labels = self.enter(self.labels)
                self.image_label = self.labels.values.mean(1)
                observed = replace(observed, image_label=self._prefix_label())
            moved = (adapter.idle if hook.idle else adapter.move)(module, observed, self.labels)
            if not isinstance(moved, Labels):
                raise RuntimeError(f"the adapter of {hook.name} returned a {type(moved).__name__}, not Labels")
            self.labels = moved
            if self.start is not None and hook.name == self.entry:
                self.labels = Labels(self.start(self.labels.grid), self.labels.grid)
                self.image_label = self.labels.values.mean(1)
        self.taps = {}
        self.fired.append(hook.name)
        if self.leave is not None and adapter.layer:
            self.leave(hook.name, self.labels)

    def _prefix_label(self) -> Tensor:
        """(B, K): what a token without a place in the image starts with."""
        assert self.image_label is not None
        return self.image_label if self.label_prefix else torch.zeros_like(self.image_label)


class _Watch:
    """A hook that keeps what an adapter wants to see."""

    def __init__(self, follower: Follower, tap: str, side: str, position: int) -> None:
        self.follower, self.tap, self.side, self.position = follower, tap, side, position

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        if self.follower.labels is None:
            return
        if self.side == "output":
            value = output
        elif self.side == "input":
            value = _first(inputs, named)
        else:
            value = inputs[self.position] if self.position < len(inputs) else named.get(self.side)
        if value is not None:
            self.follower.taps[self.tap] = value.detach()


class _Move:
    """A hook that moves the labels as its module has moved the tokens."""

    def __init__(self, follower: Follower, kind: type[nn.Module], name: str, last: bool, idle: bool, plan: Any) -> None:
        self.follower, self.kind, self.name = follower, kind, name
        self.last, self.idle, self.plan = last, idle, plan

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        if self.follower.labels is not None:
            self.follower.move(module, _first(inputs, named), self)


def _first(inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """What a module was called with, by place or by name."""
    return inputs[0] if inputs else next(iter(named.values()), None)


def _position(module: nn.Module, side: str) -> int:
    """Where the argument that a tap wants stands in a call: 0 for "input"."""
    return 0 if side in ("input", "output") else list(inspect.signature(module.forward).parameters).index(side)


def _remove(handles: list[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()


def _choose(blocks: list[nn.Module], layers: Iterable[int] | None) -> list[nn.Module]:
    if layers is None:
        return blocks
    layers = list(layers)
    wrong = [layer for layer in layers if not -len(blocks) <= layer < len(blocks)]
    if wrong:
        raise ValueError(
            f"layers are counted from 0, or from the end with -1: this model has 0 to {len(blocks) - 1}, not {wrong}"
        )
    return [blocks[layer] for layer in layers]


def _check(images: Tensor, share: Tensor) -> None:
    if images.ndim != 4 or not len(images):
        raise ValueError(f"images must have the shape (B, C, H, W), not {tuple(images.shape)}")
    if not isinstance(share, Tensor):
        raise ValueError(f"share must be a tensor, such as mix.share, not a {type(share).__name__}")
    expected = (images.shape[0], 1, images.shape[2], images.shape[3])
    if share.shape != expected:
        raise ValueError(f"share must have the shape (B, 1, H, W) = {expected}, not {tuple(share.shape)}")
    # Elsewhere than on a CPU, looking at the values would make the host wait for the device at every step.
    if share.device.type == "cpu" and not torch.compiler.is_compiling():
        low, high = share.aminmax()
        if not (low >= 0 and high <= 1):
            raise ValueError(
                f"share must lie in [0, 1], the part of one's own image; it reaches from {low:g} to {high:g}"
            )
