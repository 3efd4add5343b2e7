"""The registry: everything in it is held against an oracle, and what cannot be loaded says so."""

import timm
import torch
from torch import nn

from families import FAMILIES
from labelflow.adapters.registry import MODELS, MODULES


def _built(name: object, arguments: dict) -> nn.Module:
    with torch.device("meta"):
        return timm.create_model(name, **arguments) if isinstance(name, str) else name(**arguments)  # type: ignore[operator]


def test_every_registered_class_is_held_against_an_oracle() -> None:
    """`test_align.py` compares each of these families with its oracle: who registers a class adds one."""
    seen: set[type] = set()
    for name, arguments, _ in FAMILIES.values():
        model = _built(name, arguments)
        seen.update(type(model).__mro__, *(type(module).__mro__ for module in model.modules()))
    assert [kind.__name__ for kind in MODELS if kind not in seen] == []
    assert [kind.__name__ for kind in MODULES if kind not in seen] == []
