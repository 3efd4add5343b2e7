"""Which of timm's models labelflow can follow: every name is attached, and one model of each kind is run.

A model is first built without weights (on torch's meta device), which takes a moment even for the largest, and
attached: this looks at its real blocks, not only at its class. Of models whose class and kinds of modules are the
same, the smallest is then built for real and run.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import timm
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from labelflow.align import Aligned
from labelflow.analysis.locality import Locality, locality

CONSTANT = 0.3  # a share that must arrive unchanged


@dataclass(frozen=True)
class Found:
    """A model name of timm's."""

    name: str
    architecture: str  # the file of timm.models that it comes from
    model: str  # its class
    parts: tuple[str, ...]  # the kinds of modules that its labels pass through; none if it is refused
    parameters: int
    refused: str = ""  # why labels cannot follow it

    @property
    def kind(self) -> tuple[str, ...]:
        """Of one kind, a model is run."""
        return (self.model, *self.parts)


@dataclass(frozen=True)
class Tried:
    """A model that was run."""

    name: str
    error: float  # how far a constant share was off when it arrived
    same_logits: bool  # as those of the model alone, bit by bit
    locality: Locality | None  # whether labels went where tokens went

    @property
    def passed(self) -> bool:
        return self.error < 1e-5 and self.same_logits and self.locality is not None and self.locality.passed


def names_of_timm() -> list[str]:
    """Without those that labelflow has registered with it."""
    return [name for name in timm.list_models() if timm.models.model_entrypoint(name).__module__.startswith("timm.")]


def look(name: str) -> Found:
    """Attach labels to a model of that name, built without weights."""
    with torch.device("meta"):
        model = timm.create_model(name)
    facts = (name, _architecture(name), type(model).__name__)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    try:
        aligned = Aligned(model)
    except Exception as error:  # a refusal, or a mistake of ours: the table says so, and the walk goes on
        return Found(*facts, (), parameters, str(error))
    parts = {type(model.get_submodule(step)).__name__ for step in aligned.follower.steps}
    return Found(*facts, tuple(sorted(parts)), parameters)


def _architecture(name: str) -> str:
    return timm.models.model_entrypoint(name).__module__.rsplit(".", 1)[-1]


@torch.no_grad()
def run(name: str, batch: int = 2) -> Tried:
    """A model of that name with random weights: in training mode, alone and with labels; then whether labels go where
    tokens go."""
    model = timm.create_model(name).train()
    images = torch.randn(batch, *model.pretrained_cfg["input_size"], generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    alone = _tensors(model(images))
    torch.manual_seed(0)
    outputs, share = Aligned(model)(images, torch.full_like(images[:, :1], CONSTANT))
    same = all(torch.equal(a, b) for a, b in zip(alone, _tensors(outputs), strict=True))
    channels, height, width = model.pretrained_cfg["input_size"]
    found = locality(model, (height, width), channels)
    return Tried(name, (share - CONSTANT).abs().max().item(), same, found)


def _tensors(output: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]


def smallest_of_each_kind(found: Iterable[Found], largest: float = 1e9) -> list[Found]:
    """What has to be run, so that every kind of model is, if it has no more parameters than that."""
    kinds: dict[tuple[str, ...], Found] = {}
    for model in sorted(found, key=lambda model: model.parameters):
        if not model.refused and model.parameters <= largest:
            kinds.setdefault(model.kind, model)
    return list(kinds.values())


def table(found: list[Found], tried: Mapping[str, Tried]) -> list[tuple[str, int, int, int, str]]:
    """For each architecture: its name, how many model names it has, how many are aligned, how many kinds of them were
    run and passed, and what is to be said about the others."""
    architectures: dict[str, list[Found]] = defaultdict(list)
    for model in found:
        architectures[model.architecture].append(model)
    passed = {model.kind for model in found if model.name in tried and tried[model.name].passed}
    rows = []
    for architecture, models in sorted(architectures.items()):
        kinds = {model.kind for model in models if not model.refused}
        reasons = Counter(_short(model.refused) for model in models if model.refused)
        told = "; ".join(f"{count} × {reason}" if len(models) > count else reason for reason, count in reasons.items())
        aligned = sum(not model.refused for model in models)
        rows.append((architecture, len(models), aligned, len(kinds & passed), told))
    return rows


def _short(reason: str) -> str:
    return reason.split("; write one with ")[0].replace("labelflow has no adapter for timm.models.", "no adapter for ")


def page(found: list[Found], tried: Mapping[str, Tried]) -> str:
    """The table as Markdown, for the documentation."""
    rows = table(found, tried)
    aligned = sum(not model.refused for model in found)
    whole = sum(row[1] == row[2] for row in rows)
    partly = sum(0 < row[2] < row[1] for row in rows)
    worst = max((result.error for result in tried.values()), default=0)
    stray = max((result.locality.stray for result in tried.values() if result.locality), default=0)
    return "\n".join(
        [
            "# Models",
            "",
            f"labelflow follows labels through **{aligned} of the {len(found)} model names** of timm "
            f"{timm.__version__}: all names of {whole} of its {len(rows)} architectures, and some of {partly} more.",
            "",
            "This page is written by `labelflow coverage --write docs/models.md`. Every name was built without weights "
            "and attached, which looks at its real blocks. Of models of one class whose labels pass through the same "
            f"kinds of modules, the smallest was run at its own size of images, in training mode: {len(tried)}, none "
            "of more than a billion parameters. Its logits were the same with labels and without, bit by bit, and a "
            f"constant share arrived unchanged, to {worst:.0e}. The label of a single cell went where that cell "
            f"changes the model's own features: at most {stray:.0e} of it lay elsewhere "
            "(`labelflow.analysis.locality`).",
            "",
            "| timm.models | names | aligned | kinds run | the others |",
            "|---|--:|--:|--:|---|",
            *(f"| {name} | {names} | {count} | {kinds} | {told} |" for name, names, count, kinds, told in rows),
            "",
        ]
    )
