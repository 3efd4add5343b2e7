"""What the engine requires of a task."""

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from torch import Generator, Tensor, nn
from torch.distributed.checkpoint.stateful import Stateful

from labelflow.data import Problem
from labelflow.loss import Term

Details = dict[str, dict[str, float | None]]  # by class and metric; None where it is undefined


class Evaluated(Protocol):
    """The data and the metrics of a task."""

    def eval_batches(self, rank: int, processes: int) -> Iterable[Any]:
        """Every sample once, divided among the processes, with equally many batches: `to(device)`, which moves
        all their tensors, and `problems`, before and after."""
        ...

    def measure(self, student: nn.Module, batch: Any) -> dict[str, Tensor]:
        """Sums, which are added over all batches and processes."""
        ...

    def metrics(self, sums: dict[str, Tensor]) -> dict[str, float]:
        """The metrics, from those sums."""
        ...

    def details(self) -> Details:
        """Metrics by class at the last evaluation; {} for tasks without them."""
        ...

    def unreadable(self, problems: list[Problem]) -> None:
        """Report unreadable samples; ValueError if there are too many."""
        ...


class Task(Evaluated, Protocol):
    """Training, as well."""

    samples: int  # in an epoch of training
    one_size: bool  # whether all images have the same size, those of evaluations too, or one of a few

    @property
    def memory(self) -> Stateful | None:
        """What training needs of this process's earlier micro-batches; None: nothing."""
        ...

    @property
    def headline(self) -> str:
        """The metric that decides which checkpoint is best; larger is better."""
        ...

    @property
    def student(self) -> Any:
        """The trained module; its `model` is evaluated and saved."""
        ...

    def train_batches(self, updates: int, first_update: int, rank: int, processes: int) -> Iterator[Any]:
        """The micro-batches of one process from an update on, `batch / micro_batch / processes` for each update."""
        ...

    def terms(self, student: nn.Module, batch: Any, generator: Generator) -> list[Term]:
        """The loss of one micro-batch; all randomness but the model's comes from the generator."""
        ...
