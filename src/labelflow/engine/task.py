"""What the engine needs to know of a task."""

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from torch import Generator, Tensor, nn

from labelflow.loss import Term

Details = dict[str, dict[str, float | None]]  # by class and metric; None where there is nothing to measure


class Evaluated(Protocol):
    """The data and the metrics of a task."""

    def eval_batches(self, rank: int, processes: int) -> Iterable[Any]:
        """Every sample once, dealt to the processes, as many batches for each: `to(device)`, `problems`."""
        ...

    def measure(self, student: nn.Module, batch: Any) -> dict[str, Tensor]:
        """What an evaluation adds up over all batches and processes."""
        ...

    def metrics(self, sums: dict[str, Tensor]) -> dict[str, float]:
        """The metrics that come out of the sums."""
        ...

    def details(self) -> Details:
        """The metrics of each class at the last evaluation; {} where a task has none."""
        ...

    def unreadable(self, problems: list[str]) -> None:
        """Tells of samples that could not be read, and raises a ValueError when there are too many."""
        ...


class Task(Evaluated, Protocol):
    """Its training, too."""

    samples: int  # in an epoch of training
    headline: str  # the metric that says which checkpoint is best: the largest

    @property
    def student(self) -> Any:
        """The module that is trained; its `model` is what is evaluated and saved."""
        ...

    def train_batches(self, updates: int, first_update: int, rank: int, processes: int) -> Iterator[Any]:
        """The micro-batches of one process from an update on, `batch / micro_batch / processes` for each update."""
        ...

    def terms(self, student: nn.Module, batch: Any, generator: Generator) -> list[Term]:
        """The loss of one micro-batch; all chance that is not the model's comes from the generator."""
        ...
