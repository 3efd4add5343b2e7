"""Hooks that move labels along with a model's tokens.

`Follower` hooks the modules that a model's tokens pass through. During `run`, and only in the thread that called it,
each hook moves the labels the way its module has just moved the tokens. The model itself is left alone.

Shapes: B batch, C channels, H×W pixels, N tokens, K sources, h×w the grid of the patch embedding.
"""

import inspect
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from labelflow.adapters.registry import MODELS, MODULES, Observed, identity, known_model, known_module, load_optional
from labelflow.flow import Labels
from labelflow.tokens import embedding_of

InitialLabels = Callable[[tuple[int, int]], Tensor]  # a grid (h, w) -> the labels of its tokens (B, h·w, K)
Enter = Callable[[Labels], Labels]  # the labels before a block -> those that it moves
Leave = Callable[[str, Labels], None]  # called with a block's name and the labels after it


class Flow(NamedTuple):
    """The labels that arrive: (own, partner) for K = 2 sources."""

    heads: Tensor  # (B, heads, K), one row for each classifier; a distilled DeiT has two
    tokens: Tensor | None  # (B, h·w, K), one row for each patch token; None unless requested


class Layer(NamedTuple):
    """The labels after one block."""

    name: str  # of the block in the model, such as "blocks.3"
    share: Tensor  # (B, N): own share of each token; those without a place in the image come first
    grid: tuple[int, int]

    @property
    def map(self) -> Tensor:
        """(B, h, w)"""
        return self.share[:, self.share.shape[1] - self.grid[0] * self.grid[1] :].unflatten(1, self.grid)


class PerThread(threading.local):
    """A value that every thread has to itself, None at first. Copies and pickles start with None, too."""

    __slots__ = ()  # no __dict__ of its own: after a graph break, torch.compile would write there, for nobody to read
    value: Any

    def __init__(self) -> None:  # called once in each thread
        self.value = None

    def __reduce__(self) -> tuple[type["PerThread"], tuple[()]]:
        return PerThread, ()


class Hooks:
    """Hooks that are removed from their modules when this object is deleted.

    A copy or an unpickled one holds the hooks of the modules that were copied or unpickled along with it.
    """

    def __init__(self, handles: list[RemovableHandle]) -> None:
        self.handles = handles

    def __del__(self) -> None:
        for handle in self.handles:
            handle.remove()


@dataclass(eq=False)
class ForwardPass:
    """The state of one call of `Follower.run`."""

    follower: "Follower"
    labels: Labels
    head_tokens: int  # how many leading tokens are enough in the end; 0: all are needed
    initial_labels: InitialLabels | None
    enter: Enter | None
    leave: Leave | None
    taps: dict[str, Tensor] = field(default_factory=dict)  # since the last step
    fired: list[str] = field(default_factory=list)
    image_label: Tensor = field(init=False)  # (B, K): the label of the whole image

    def __post_init__(self) -> None:
        self.image_label = self.labels.values.mean(1)

    def restart(self, labels: Labels) -> None:
        """Go on with labels of other sources."""
        self.labels, self.image_label = labels, labels.values.mean(1)


class Follower:
    """Hooks on a model that move labels along with its tokens during `run`, and do nothing otherwise.

    All that changes belongs to one call of `run` and to its thread: the model may be used in other threads, with or
    without this follower. The hooks go with the follower, which they do not refer to; copies have their own.
    """

    def __init__(
        self, model: nn.Module, layers: Iterable[int] | None, residual: bool, label_prefix: bool = True
    ) -> None:
        self.model_kind = known_model(model)  # kinds, not adapters: functions do not always pickle
        self.residual = residual
        self.label_prefix = label_prefix
        self.current = PerThread()  # ForwardPass, or None: idle

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
        chosen = _choose(blocks, layers)
        left_out = set(blocks) - set(chosen)
        self.watches_blocks = any(MODULES[kinds[module]].taps(module) for module in chosen)
        self.hooks = Hooks([])
        for module, kind in kinds.items():
            blind = module in left_out and MODULES[kind].idle is identity
            taps = {} if blind else MODULES[kind].taps(module)
            plan = MODULES[kind].plan
            move = _MoveHook(
                self.current,
                kind,
                names[module],
                last=module is blocks[-1],
                idle=module in left_out,
                plan=plan(module) if plan else None,
            )
            # First of all hooks: FSDP's own, which shard the weights again, have to come after it.
            self.hooks.handles.append(module.register_forward_hook(move, prepend=True, with_kwargs=True))
            # In front of it, since an adapter may watch its module itself.
            for tap, (watched, side) in taps.items():
                watch = _TapHook(self.current, tap, side, _position(watched, side))
                self.hooks.handles.append(watched.register_forward_hook(watch, prepend=True, with_kwargs=True))

    def require_attention(self, who: str, instead: str) -> None:
        """In the chosen blocks. What moves tokens in the same way for every image needs no tap."""
        if not self.watches_blocks:
            raise ValueError(
                f"{who} needs attention between tokens, which a {self.model_kind.__name__} does not have; use {instead}"
            )

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        load_optional(self.model_kind)  # another process may not have met such a model

    def run(
        self,
        model: nn.Module,
        images: Tensor,
        share: Tensor,
        tokens: bool = False,
        initial_labels: InitialLabels | None = None,
        enter: Enter | None = None,
        leave: Leave | None = None,
        call: Callable[[Tensor], Any] | None = None,
    ) -> tuple[Any, Flow]:
        """Run the model, or `call` instead of it: its own output, and the labels that arrive with it.

        share (B, 1, H, W) are the labels of the pixels. `initial_labels` replaces those of the tokens as they leave the
        patch embedding, `enter` those before every block; `leave` is called with those after it.
        """
        _check(images, share)
        adapter = MODELS[self.model_kind]
        head_tokens = adapter.head_tokens(model)  # refuses a pooling that cannot be followed, before anything is set
        labels = Labels.of_pixels(share.detach())
        current = ForwardPass(self, labels, 0 if tokens else head_tokens, initial_labels, enter, leave)
        self.current.value = current
        try:
            logits = (call or model)(images)
        except AssertionError as error:
            if current.fired:
                raise
            size = f"{images.shape[2]}×{images.shape[3]}"  # before any token: timm's way to refuse an image size
            raise ValueError(f"{type(model).__name__} refused images of {size} pixels: {error}") from error
        finally:
            self.current.value = None
        if current.fired != self.steps:
            missing = ", ".join(step for step in self.steps if step not in current.fired)
            raise RuntimeError(
                f"labels followed {len(current.fired)} of {len(self.steps)} modules: "
                f"{type(model).__name__} did not run {missing or 'each of them once, in order'}"
            )
        arrived = current.labels
        with torch.no_grad(), torch.autocast(arrived.values.device.type, enabled=False):
            heads = adapter.heads(model, arrived.values)
            return logits, Flow(heads, arrived.map.flatten(1, 2) if tokens else None)

    def move(self, current: ForwardPass, module: nn.Module, tokens: Any, hook: "_MoveHook") -> None:
        """Move the labels as a module has moved its input `tokens`."""
        adapter = MODULES[hook.kind]
        with torch.no_grad(), torch.autocast(current.labels.values.device.type, enabled=False):
            rows = slice(current.head_tokens if hook.last and current.head_tokens else None)
            observed = Observed(current.taps, rows, self.residual, self._prefix_label(current), hook.plan)
            labels = current.labels
            is_sequence = isinstance(tokens, Tensor) and tokens.ndim == 3 and len(tokens) == len(labels.values)
            if adapter.layer and is_sequence:  # not windows, nor TNT's pixels, which are more than B
                labels = observed.join(labels, tokens.shape[1])
            if adapter.layer and current.enter is not None:
                labels = current.enter(labels)
                current.restart(labels)
                observed = replace(observed, image_label=self._prefix_label(current))
            moved = (adapter.idle if hook.idle else adapter.move)(module, observed, labels)
            if not isinstance(moved, Labels):
                raise RuntimeError(f"the adapter of {hook.name} returned a {type(moved).__name__}, not Labels")
            current.labels = moved
            if current.initial_labels is not None and hook.name == self.entry:
                current.restart(Labels(current.initial_labels(moved.grid), moved.grid))
        current.taps = {}
        current.fired.append(hook.name)
        if current.leave is not None and adapter.layer:
            current.leave(hook.name, current.labels)

    def _prefix_label(self, current: ForwardPass) -> Tensor:
        """(B, K): the initial label of a token without a place in the image."""
        return current.image_label if self.label_prefix else torch.zeros_like(current.image_label)


class _TapHook:
    """A hook that records what an adapter wants to see."""

    def __init__(self, current: PerThread, tap: str, side: str, position: int) -> None:
        self.current, self.tap, self.side, self.position = current, tap, side, position

    # While a hook is being added or removed, PyTorch may call it in another thread without the keyword arguments.
    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], *named_and_output: Any) -> None:
        current = self.current.value
        if current is None:
            return
        named, output = named_and_output
        if self.side == "output":
            value = output
        elif self.side == "input":
            value = _first(inputs, named)
        else:
            value = inputs[self.position] if self.position < len(inputs) else named.get(self.side)
        if value is not None:
            current.taps[self.tap] = value.detach()


class _MoveHook:
    """A hook that moves the labels as its module has moved the tokens."""

    def __init__(self, current: PerThread, kind: type[nn.Module], name: str, last: bool, idle: bool, plan: Any) -> None:
        self.current, self.kind, self.name = current, kind, name
        self.last, self.idle, self.plan = last, idle, plan

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], *named_and_output: Any) -> None:  # as _TapHook's
        current = self.current.value
        if current is not None:
            current.follower.move(current, module, _first(inputs, named_and_output[0]), self)


def _first(inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """The first argument of a module's call, positional or by keyword."""
    return inputs[0] if inputs else next(iter(named.values()), None)


def _position(module: nn.Module, side: str) -> int:
    """The position of a tap's argument in a call of its module; 0 for "input"."""
    return 0 if side in ("input", "output") else list(inspect.signature(module.forward).parameters).index(side)


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
