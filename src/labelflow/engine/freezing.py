"""Parts of a model that are not trained, or not before some epoch.

What is frozen for good needs no gradients. What thaws later has them all along, as DDP requires, but they are dropped
before each update until then: it gets no optimizer state, and what is frozen is a function of the update's number.
"""

import fnmatch
import math
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import product
from typing import Any

from timm.models import group_parameters
from torch import nn

from labelflow.engine.settings import Training


class Freezing:
    """Of a model: `begin(update)` before a forward pass, `drop_gradients()` before gradients are used.

    Create it before the optimizer, and before the model is wrapped.
    """

    def __init__(self, model: nn.Module, training: Training, per_epoch: int) -> None:
        self.model = model
        self.until = thaw_updates(model, training, per_epoch)
        self.frozen: set[str] = set()  # parameters, at the current update
        self.modules: list[nn.Module] = []  # which have no others
        for name, parameter in model.named_parameters():
            if self.until.get(name) == math.inf:
                parameter.requires_grad_(False)

    def begin(self, update: int) -> None:
        """Modules whose parameters are all frozen are put in eval mode; an evaluation may have ended in another."""
        frozen = frozen_at(self.until, update)
        if frozen != self.frozen:
            self.frozen, self.modules = frozen, list(_whole_modules(self.model, frozen))
        if self.until:
            self.model.train()  # those that thaw; and some throw away then what they keep in eval mode (LeViT)
        for module in self.modules:
            module.eval()

    def drop_gradients(self) -> None:
        if self.frozen:
            for name, parameter in self.model.named_parameters():
                if name in self.frozen:
                    parameter.grad = None


def thaw_updates(model: nn.Module, training: Training, per_epoch: int) -> dict[str, float]:
    """For each frozen parameter, the update from which on it is trained; infinity: never. ValueError where a part does
    not exist or thaws after the end, or nothing would be trained."""
    until: dict[str, float] = {}
    for frozen in training.frozen:
        thaws = math.inf if frozen.until is None else frozen.until * per_epoch
        if training.total_updates(per_epoch) <= thaws < math.inf:
            epochs = training.total_updates(per_epoch) / per_epoch
            raise ValueError(
                f"--freeze {frozen.part}@{frozen.until} would thaw when the run is over, after epoch {epochs:.4g}; "
                f"without @{frozen.until} it is frozen for good"
            )
        for name in part_parameters(model, frozen.part):
            until[name] = max(until.get(name, 0), thaws)  # of two parts, the longer one
    if len(until) == len(list(model.parameters())):
        first = min(until.values())
        before = "" if first == math.inf else f" before epoch {first / per_epoch + 1:g}"
        raise ValueError(f"--freeze {' '.join(training.freeze)} leaves nothing to train{before}")
    return until


def frozen_at(until: dict[str, float], update: int) -> set[str]:
    return {name for name, thaws in until.items() if update < thaws}


def freezing_summary(model: nn.Module, training: Training, per_epoch: int) -> str:
    """How many parameters are trained, and what thaws when; '' if nothing is frozen."""
    if not training.freeze:
        return ""
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    until = thaw_updates(model, training, per_epoch)

    def trained(update: float) -> int:
        return sum(size for name, size in sizes.items() if until.get(name, 0) <= update)

    said = [f"training {trained(0):,} of {sum(sizes.values()):,} parameters"]
    if parts := [frozen.part for frozen in training.frozen if frozen.until is None]:
        said.append(f"frozen: {', '.join(parts)}")
    for epoch in sorted({frozen.until for frozen in training.frozen if frozen.until is not None}):
        parts = [frozen.part for frozen in training.frozen if frozen.until == epoch]
        then = f"{trained(epoch * per_epoch):,} from then on"
        said.append(f"frozen until epoch {epoch} has ended: {', '.join(parts)} ({then})")
    return "; ".join(said)


def part_parameters(model: nn.Module, part: str) -> set[str]:
    """The names of a part's parameters. stem: timm's first group of layers; backbone: all but the classifier; otherwise
    a name, in whose places between the dots may stand a range or a pattern: blocks.0-5, blocks.*.attn."""
    names = [name for name, _ in model.named_parameters()]
    special = {"stem": _stem, "backbone": _backbone}
    if part in special and (found := special[part](model)):
        return found
    matched: set[str] = set()
    for one in _without_ranges(part):
        inside = {name for name in names if _is_inside(name, one)}
        if not inside:
            of = f" of {part}" if one != part else ""
            raise ValueError(f"--freeze: the model has no part {one!r}{of}; it has {', '.join(_offered(model))}")
        matched |= inside
    return matched


def classifier_parameters(model: nn.Module) -> set[int]:
    """ids of the classifier's parameters, or of several classifiers': those that timm's `get_classifier` returns, and
    those that a model's `pretrained_cfg` names (an LV-ViT has one more there)."""
    get: Any = getattr(model, "get_classifier", tuple)
    named = (getattr(model, "pretrained_cfg", None) or {}).get("classifier") or ()
    inside = dict(model.named_modules())
    modules = [inside[name] for name in _several(named) if name in inside]
    return {id(one) for module in (*_several(get()), *modules) for one in module.parameters()}


def _several(one_or_more: Any) -> Sequence[Any]:
    return one_or_more if isinstance(one_or_more, tuple | list) else (one_or_more,)


def _stem(model: nn.Module) -> set[str]:
    if not hasattr(model, "group_matcher"):
        return set()
    matcher: Any = model.group_matcher(coarse=False)  # type: ignore[operator]
    if isinstance(matcher, dict) and "stem" not in matcher:
        return set()
    layers = group_parameters(model, matcher, reverse=True)
    return {name for name, layer in layers.items() if layer == 0}


def _backbone(model: nn.Module) -> set[str]:
    classifier = classifier_parameters(model)
    return (
        {name for name, parameter in model.named_parameters() if id(parameter) not in classifier}
        if classifier
        else set()
    )


def _without_ranges(part: str) -> list[str]:
    """
    >>> _without_ranges("blocks.0-2.attn")
    ['blocks.0.attn', 'blocks.1.attn', 'blocks.2.attn']
    """
    choices = []
    for place in part.split("."):
        ends = re.fullmatch(r"(\d+)-(\d+)", place)
        choices.append([str(i) for i in range(int(ends[1]), int(ends[2]) + 1)] if ends else [place])
    return [".".join(chosen) for chosen in product(*choices)] or [part]


def _is_inside(name: str, pattern: str) -> bool:
    places, wanted = name.split("."), pattern.split(".")
    return len(places) >= len(wanted) and all(map(fnmatch.fnmatchcase, places, wanted))


def _offered(model: nn.Module) -> Iterator[str]:
    """Parts that can be named, as ranges where they are numbered."""
    yield from (part for part, find in (("stem", _stem), ("backbone", _backbone)) if find(model))
    for first in dict.fromkeys(name.split(".")[0] for name, _ in model.named_parameters()):
        numbers = [name for name, _ in getattr(getattr(model, first), "named_children", list)()]
        numbered = numbers and all(number.isdecimal() for number in numbers)
        yield f"{first}.{numbers[0]}-{numbers[-1]}" if numbered else first


def _whole_modules(model: nn.Module, frozen: Collection[str], prefix: str = "") -> Iterator[nn.Module]:
    """The outermost that have parameters, all of them frozen."""
    for child, module in model.named_children():
        names = [f"{prefix}{child}.{name}" for name, _ in module.named_parameters()]
        if names and all(name in frozen for name in names):
            yield module
        else:
            yield from _whole_modules(module, frozen, f"{prefix}{child}.")
