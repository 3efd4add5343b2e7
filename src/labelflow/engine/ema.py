"""The exponential moving average of a model's weights."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor


def local(value: Tensor) -> Tensor:
    """This process's part of a sharded tensor; any other tensor as it is."""
    return value.to_local() if isinstance(value, DTensor) else value


class Ema:
    """average ← decay·average + (1-decay)·weights, for parameters and buffers.

    It keeps tensors, not a copy of the model (timm's ModelEmaV3), so that it is sharded where the model is, and is
    evaluated through the compiled or wrapped model: `with ema.weights(): evaluate(student)`.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay = model, decay
        self.average = {name: value.detach().clone() for name, value in model.state_dict().items()}

    @torch.no_grad()
    def update(self) -> None:
        averages, values = [], []
        for name, value in self.model.state_dict().items():
            if value.is_floating_point():
                averages.append(local(self.average[name]))  # buffers are not sharded
                values.append(local(value))
            else:
                self.average[name].copy_(value)
        torch._foreach_lerp_(averages, values, weight=1 - self.decay)

    @contextmanager
    def weights(self) -> Iterator[None]:
        """Inside, the model has the averaged weights."""
        own = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        self._set(self.model.state_dict(), self.average)
        try:
            yield
        finally:
            self._set(self.model.state_dict(), own)

    def state(self) -> dict[str, Tensor]:
        """Full tensors on the CPU. Collective where the model is sharded."""
        return {
            name: (value.full_tensor() if isinstance(value, DTensor) else value).cpu()
            for name, value in self.average.items()
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        for name, value in self.average.items():
            full = state[name].to(value.device)
            mesh = (value.device_mesh, value.placements) if isinstance(value, DTensor) else None
            value.copy_(full if mesh is None else distribute_tensor(full, *mesh))

    @staticmethod
    @torch.no_grad()
    def _set(into: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
        for name, value in into.items():
            value.copy_(values[name])
