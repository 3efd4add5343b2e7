"""A dense model as the engine trains it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Whole(nn.Module):
    """Nothing but the model: `model` is what is trained, evaluated and saved."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = with_shared_norms(model)
        self.fast: Callable[..., Any] | None = None

    def forward(self, *inputs: Any) -> Any:
        return self.fast(*inputs) if self.fast and self.training else self.model(*inputs)

    def compile(self, *args: Any, **how: Any) -> None:
        """For training, whose images have one size; those of an evaluation have many, and are computed as they are."""
        self.fast = torch.compile(self.model.forward, dynamic=False, **how)

    def no_weight_decay(self) -> set[str]:
        own: Any = getattr(self.model, "no_weight_decay", set)
        return {f"model.{name}" for name in own()}


def with_shared_norms(model: nn.Module) -> nn.Module:
    """Batch norms with the statistics of all processes, as published. Only GPUs can share them."""
    several = torch.distributed.is_available() and torch.distributed.is_initialized()
    if several and torch.distributed.get_world_size() > 1 and torch.cuda.is_available():
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return model
