"""Whether labels go where tokens go: a law that labels which go elsewhere break.

A few images differ from a first one in one cell each, and that cell alone has a label. A model's own maps of features
show which places the cell reaches, and how much it changes them. So does the flow of labels, and the two must agree:

    stray       the part of a cell's label on places that the cell leaves unchanged, to the bit: none
    agreement   the correlation, over places, of a cell's label and the change that it makes: high

No adapter may send a label where the model sends nothing. That says little about models that look at the whole image
at once, through attention or a gate; there, agreement holds labels to their places, as long as a cell still changes
some places more than others. The maps are timm's own, from `forward_intermediates`, so nothing here depends on how an
adapter works.

Shapes: B images, C channels, h×w a map, P = B - 1 cells.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from labelflow.adapters.registry import MODULES, Move, Observed
from labelflow.align import Aligned
from labelflow.flow import Labels

CELLS = ((2, 5), (8, 2), (5, 10))  # in a grid of 14×14: no two of them mirror or transpose each other
GRID = 14
STRAY = 0.01
CONTRAST = 0.3  # below it, a cell changes all places of a map about alike
AGREEMENT = 0.3  # labels that go elsewhere have about 0, those of most models 0.7 to 1
LEAST = 0.1  # of models that have no map with such a contrast: the agreement of the one with most


class Place(NamedTuple):
    """Labels and features after the last module of one map size."""

    grid: tuple[int, int]
    stray: float  # the largest of all cells
    agreement: float  # the mean of all cells
    contrast: float  # of the change, its standard deviation over its mean: the mean of all cells


@dataclass(frozen=True)
class Locality:
    places: list[Place]

    @property
    def stray(self) -> float:
        return max(place.stray for place in self.places)

    @property
    def agreement(self) -> float:
        """The least, of the map where cells stand out most and of every other where they do."""
        return min(place.agreement for place in self.places if place.contrast >= min(CONTRAST, self._most))

    @property
    def passed(self) -> bool:
        return self.stray <= STRAY and self.agreement >= (AGREEMENT if self._most >= CONTRAST else LEAST)

    @property
    def _most(self) -> float:
        return max(place.contrast for place in self.places)


@torch.no_grad()
def locality(model: nn.Module, size: tuple[int, int], channels: int = 3) -> Locality:
    """Of one of timm's models; its weights become random ones."""
    generator = torch.Generator().manual_seed(0)
    randomise(model, generator)
    images, share = probes(size, channels, generator)
    settle(model, images)
    aligned = Aligned(model)
    path = [model.get_submodule(step) for step in aligned.follower.steps]
    labels: list[Labels] = []  # after each module of the path
    with _watching(path, labels.append):
        aligned.trace(images, share)  # with all of its tokens
    places = {}
    for features, steps in _features(model, images, path):
        grid = (features.shape[2], features.shape[3])
        fitting = [label for label in labels[:steps] if label.grid == grid]
        if fitting and max(grid) > 1:
            places[grid] = _compare(grid, fitting[-1].map[..., 0], features)
    if not places:
        raise ValueError(f"no map of {type(model).__name__} has the size of its labels")
    return Locality(list(places.values()))


def _features(model: Any, images: Tensor, path: list[nn.Module]) -> list[tuple[Tensor, int]]:
    """Maps (B, C, h, w), each with the number of modules of the path that had run when it was made: when its sum
    last was a module's output. What is no module's output, as tokens without their class token, comes after all."""
    sums: dict[float, int] = {}
    done = int(model in path)  # as a whole

    def see(module: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal done
        done += module in path
        if isinstance(output, Tensor):
            sums[_sum(output)] = done

    hooks = [module.register_forward_hook(see) for module in model.modules()]
    maps = model.forward_intermediates(images, intermediates_only=True)
    for hook in hooks:
        hook.remove()
    return [(features, sums.get(_sum(features), len(path))) for features in maps]


def _sum(tensor: Tensor) -> float:
    return float(f"{tensor.double().sum().item():.9g}")  # in whatever order


def _compare(grid: tuple[int, int], labels: Tensor, features: Tensor) -> Place:
    """labels (B, h, w), features (B, C, h, w), the first of which is the image without a cell."""
    label = labels[1:].flatten(1)  # (P, h·w)
    change = (features[1:] - features[:1]).float().flatten(2).norm(dim=1)
    stray = (label * (change == 0)).sum(1) / label.sum(1)
    centred = (label - label.mean(1, keepdim=True), change - change.mean(1, keepdim=True))
    agreement = torch.cosine_similarity(centred[0], centred[1], dim=1)
    contrast = change.std(1) / change.mean(1)
    return Place(grid, stray.max().item(), agreement.mean().item(), contrast.mean().item())


def probes(size: tuple[int, int], channels: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """An image, then the same with another cell each, and what is to have a label: (B, C, H, W), (B, 1, H, W)"""
    images = torch.randn(1, channels, *size, generator=generator).repeat(1 + len(CELLS), 1, 1, 1)
    share = torch.zeros(len(images), 1, *size)
    height, width = (side // GRID for side in size)
    for image, own, (i, j) in zip(images[1:], share[1:], CELLS, strict=True):
        cell = (slice(None), slice(i * height, (i + 1) * height), slice(j * width, (j + 1) * width))
        image[cell] = 2 * torch.randn(image[cell].shape, generator=generator)
        own[cell] = 1
    return images, share


def randomise(model: nn.Module, generator: torch.Generator) -> None:
    """Weights such that every branch counts: many start with a scale of zero, and would change nothing."""
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 and min(len(parameter), parameter[0].numel()) > 1:
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.data = noise / parameter[0].numel() ** 0.5
        elif not name.endswith("bias") and parameter.numel() and parameter.min() == parameter.max():
            parameter.data = 0.5 + torch.rand(parameter.shape, generator=generator)


def settle(model: nn.Module, images: Tensor) -> None:
    """Let batch norms take the statistics of these images, then leave the training mode."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = 1.0
    model.train()(images)
    model.eval()


@contextmanager
def _watching(modules: list[nn.Module], see: Callable[[Labels], object]) -> Iterator[None]:
    """Have `see` look at the labels that these modules' adapters return."""

    def watched(move: Move) -> Move:
        def look(module: Any, observed: Observed, labels: Labels) -> Labels:
            moved = move(module, observed, labels)
            if module in modules:
                see(moved)
            return moved

        return look

    before = dict(MODULES)
    MODULES.update({kind: replace(adapter, move=watched(adapter.move)) for kind, adapter in before.items()})
    try:
        yield
    finally:
        MODULES.update(before)
