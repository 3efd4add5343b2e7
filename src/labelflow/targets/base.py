"""What every target is."""

from typing import Protocol

from torch import Tensor, nn

from labelflow.align import Output, Student
from labelflow.loss import Term
from labelflow.mix import Mix


class Target(Protocol):
    """Turns one forward pass into the terms of a loss."""

    def student(self, model: nn.Module) -> Student:
        """The model as this target has to see it: what is needed is computed, and nothing else."""
        ...

    def __call__(self, output: Output, labels: Tensor, mix: Mix) -> list[Term]:
        """labels (B, C): soft labels of the images before they were mixed."""
        ...
