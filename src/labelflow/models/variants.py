"""What timm's models can be told after, or while, they are made: to take images of any size, to drop paths evenly."""

from typing import Any

import torch
from timm.layers import DropPath
from torch import nn

from labelflow.models.create import create


def create_for_any_size(model: str, init: str = "", **arguments: Any) -> nn.Module:
    """`create`, with timm's dynamic_img_size where the model has it: position embeddings are interpolated, and windows
    masked, as each batch needs it. Its weights, and its logits for images of img_size, are the same as without.
    Models that have no such argument are made as they are; some of them take any size anyway."""
    state = torch.get_rng_state()
    try:
        return create(model, init, **{"dynamic_img_size": True, **arguments})
    except ValueError:  # an unknown argument; if it is anything else, it comes again
        torch.set_rng_state(state)  # for the same random weights
        return create(model, init, **arguments)


def drop_paths_evenly(model: nn.Module, rate: float) -> None:
    """The same rate of stochastic depth in all blocks (DeiT III, CaiT); timm's own grows with depth. What a block calls
    drop_path, drop_path1, … is nothing where timm's rate is 0, as it is in the first block."""
    places = [
        (module, name)
        for module in model.modules()
        for name, child in [*module.named_children(), *vars(module).items()]
        if name.startswith("drop_path") and (child is None or isinstance(child, DropPath | nn.Identity))
    ]
    if not places:
        raise ValueError(f"{type(model).__name__} has no stochastic depth that could be the same in all of its blocks")
    for module, name in places:
        setattr(module, name, DropPath(rate))
