"""What labelflow knows of a model: the modules its tokens pass through, and how each of them moves labels.

A *module adapter* says how one class of blocks moves labels, in terms of the five operations of `flow`. A *model
adapter* says which modules tokens pass through, in order, and which tokens the classifier reads. Both are looked up
by class. To add a family: one file with both, one line in `adapters/__init__.py`, one test.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from labelflow import flow
from labelflow.flow import Labels


class Tap(NamedTuple):
    """A module whose output, whose first input, or whose argument of some name an adapter wants to see."""

    module: nn.Module
    side: str = "output"  # "output", "input", or the argument's name; where it is None, the tap does not fire


@dataclass(frozen=True)
class Observed:
    """What an adapter sees of one module's forward pass: `observed["query"]`, `"weights" in observed`."""

    taps: Mapping[str, Tensor]  # detached, by name; those that fired
    rows: slice  # the tokens whose labels are still needed; fewer in the last block of a class-token model
    keep_residual: bool  # False: the ablation Y ← A·Y
    image_label: Tensor  # (B, K): what a token without a place in the image starts with
    plan: Any = None  # what the adapter's own `plan` made of the module when it was attached

    def __contains__(self, tap: str) -> bool:
        return tap in self.taps

    def __getitem__(self, tap: str) -> Tensor:
        if tap not in self.taps:
            raise RuntimeError(
                f"no module that the adapter watches as {tap!r} ran in this forward pass; "
                f"observed were {sorted(self.taps)}"
            )
        return self.taps[tap]

    def residual(self, labels: Tensor, mixed: Tensor) -> Tensor:
        return flow.residual(labels, mixed) if self.keep_residual else mixed

    def join(self, labels: Labels, tokens: int) -> Labels:
        """`labels`, with as many tokens without a place in front as are missing to so many in all."""
        missing = tokens - labels.values.shape[1]
        if missing < 0:
            raise RuntimeError(f"there are labels for {labels.values.shape[1]} tokens, but {tokens} tokens")
        joined = self.image_label.unsqueeze(1).expand(-1, missing, -1)
        return Labels(torch.cat([joined, labels.values], 1), labels.grid) if missing else labels


class Move(Protocol):
    def __call__(self, module: Any, observed: Observed, labels: Labels) -> Labels: ...


Taps = Callable[[Any], Mapping[str, Tap]]


@dataclass(frozen=True)
class ModuleAdapter:
    move: Move
    taps: Taps
    layer: bool  # counted by `layers=`, and a step of `trace`; patch embeddings and mergers are not
    idle: Move  # what is left of it where `layers=` leaves it out: the identity, unless it changes the grid
    plan: Callable[[Any], Any] | None  # what can be worked out before the first forward pass; plain data


@dataclass(frozen=True)
class ModelAdapter:
    path: Callable[[Any], list[nn.Module]]  # what tokens pass through, in order
    heads: Callable[[Any, Tensor], Tensor]  # labels (B, N, K) -> what each classifier reads (B, heads, K)
    head_tokens: Callable[[Any], int]  # how many leading tokens `heads` needs; 0: all. Refuses what it cannot read


MODULES: dict[type[nn.Module], ModuleAdapter] = {}
MODELS: dict[type[nn.Module], ModelAdapter] = {}
REFUSED: dict[type[nn.Module], str] = {}  # classes that labels cannot follow, and why
UNAVAILABLE: dict[str, ImportError] = {}  # files of adapters that failed to import with this timm, and why
OPTIONAL = {"transformers": "labelflow.adapters.huggingface"}  # imported when a model of that package is met


def _no_taps(module: nn.Module) -> dict[str, Tap]:
    return {}


def identity(module: nn.Module, observed: Observed, labels: Labels) -> Labels:
    return labels


def register(
    *classes: type[nn.Module],
    taps: Taps = _no_taps,
    layer: bool = True,
    idle: Move = identity,
    plan: Callable[[Any], Any] | None = None,
) -> Callable[[Move], Move]:
    """Say how modules of these classes move labels. The options are described at `ModuleAdapter`.

    >>> from labelflow import adapters, flow
    >>> class Roll(nn.Module):
    ...     "Half of the channels move one place to the right."
    >>> @adapters.register(Roll)
    ... def roll(module, observed, labels):
    ...     return labels.with_map(flow.residual(labels.map, labels.map.roll(1, dims=2)))
    """

    def add(move: Move) -> Move:
        MODULES.update(dict.fromkeys(classes, ModuleAdapter(move, taps, layer, idle, plan)))
        return move

    return add


def register_model(
    *classes: type[nn.Module],
    path: Callable[[Any], list[nn.Module]],
    heads: Callable[[Any, Tensor], Tensor],
    head_tokens: Callable[[Any], int] = lambda model: 0,
) -> None:
    """Say which modules the tokens of these models pass through, and which tokens their classifiers read."""
    MODELS.update(dict.fromkeys(classes, ModelAdapter(path, heads, head_tokens)))


def refuse(*classes: type[nn.Module], why: str) -> None:
    """Say why there is no adapter for these classes, so that the error and the table of models say it, too."""
    REFUSED.update(dict.fromkeys(classes, why))


def load_optional(kind: type[nn.Module]) -> None:
    """Import the adapters of a package that labelflow does not depend on, if this class, or a parent, is one of its."""
    packages = {parent.__module__.partition(".")[0] for parent in kind.__mro__}
    for package in packages & OPTIONAL.keys():
        try:
            importlib.import_module(OPTIONAL[package])
        except ImportError as error:
            raise ValueError(f"labelflow follows the models of a newer {package}: {error}") from error


def adapter_of(module: nn.Module) -> ModuleAdapter | None:
    """That of its class, or of a parent, whatever it overrides."""
    return next((MODULES[kind] for kind in type(module).__mro__ if kind in MODULES), None)


def known_module(module: nn.Module) -> type[nn.Module]:
    """The class under which a module is registered: its own, or a parent's."""
    return _known(module, MODULES, "@labelflow.adapters.register")


def known_model(model: nn.Module) -> type[nn.Module]:
    """The class under which a model is registered: its own, or a parent's."""
    name = type(model).__name__
    if name == "OptimizedModule":
        raise ValueError("align a model before it is compiled: torch.compile(Aligned(model))")
    if name in ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel"):
        raise ValueError("align a model before it is wrapped: DistributedDataParallel(Aligned(model)), or fully_shard")
    if not isinstance(model, nn.Module):
        raise ValueError(f"labelflow aligns a model, timm.create_model(...), not {model!r}")
    return _known(model, MODELS, "labelflow.adapters.register_model")


def _known(module: nn.Module, registry: Mapping[type[nn.Module], Any], how: str) -> type[nn.Module]:
    """A subclass is served by its parent's adapter as long as it overrides nothing of what the parent does."""
    load_optional(type(module))
    if type(module) in REFUSED:
        raise ValueError(f"labels cannot follow {type(module).__name__}: {REFUSED[type(module)]}")
    inherited = type(module).__mro__
    found = next((parent for parent in inherited if parent in registry), None)
    if found is not None:
        below, at = inherited[: inherited.index(found)], inherited[inherited.index(found) : inherited.index(nn.Module)]
        own = {name for kind in below for name in vars(kind) if name == "__call__" or not name.startswith("__")}
        if own.isdisjoint({"__call__", *(name for kind in at for name in vars(kind))}):
            return found
    names = sorted({kind.__name__ for kind in MODELS})
    missing = "".join(f" (adapters/{file}.py failed to import: {error})" for file, error in UNAVAILABLE.items())
    raise ValueError(
        f"labelflow has no adapter for {type(module).__module__}.{type(module).__name__}{missing}; write one with "
        f"{how} (docs/adapters.md). Models that it follows: {', '.join(names)}"
    ) from next(iter(UNAVAILABLE.values()), None)
