"""Small models of every family that labelflow follows, each with TL-Align written naively from the paper.

A module here has
- `FAMILIES`: name -> (timm model or a function that makes one, its arguments, an image size it takes);
- `ORACLES`: name of a model class -> function(model, mixed images, mix, onehot) that returns labels (B, heads, C);
- `SOME`: the names that stand for the family where details don't matter.
Adding a module is enough: all tests of adapters run on what is found here.
"""

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from labelflow import Mix

_MODULES = [importlib.import_module(f"families.{found.name}") for found in pkgutil.iter_modules(__path__)]
FAMILIES: dict[str, tuple[str | Callable[..., nn.Module], dict[str, Any], tuple[int, int]]] = {
    name: family for module in _MODULES for name, family in module.FAMILIES.items()
}
ORACLES = {name: oracle for module in _MODULES for name, oracle in module.ORACLES.items()}
SOME = [name for module in _MODULES for name in module.SOME]


def dense_label(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    """The label (B, heads, C) that reaches each classifier of a model, for images that are mixed already."""
    with torch.no_grad():
        return ORACLES[type(model).__name__](model, images, mix, onehot)
