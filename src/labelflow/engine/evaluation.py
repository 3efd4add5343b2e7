"""Evaluation on all processes."""

from collections.abc import Callable
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast, gather_object
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from labelflow.data import Problem, on_device
from labelflow.engine.task import Evaluated


@torch.no_grad()
def evaluate(
    task: Evaluated, student: nn.Module, accelerator: Accelerator, advance: Callable[[float], None] = lambda part: None
) -> dict[str, float]:
    """The task's metrics over its evaluation samples. `advance` receives the fraction done, 0 to 1."""
    training = student.training
    student.eval()
    if accelerator.is_fsdp2:
        _share_buffers(student)
    sums: dict[str, Tensor] = {}
    problems: list[Problem] = []
    batches = task.eval_batches(accelerator.process_index, accelerator.num_processes)
    count = _length(batches)
    for number, batch in enumerate(on_device(batches, accelerator.device), 1):
        problems += batch.problems
        for name, value in task.measure(student, batch).items():
            sums[name] = sums[name] + value if name in sums else value
        advance(number / count if count else 0.0)
    student.train(training)
    task.unreadable(gather_object(problems))
    if not sums:
        raise ValueError("a process has no samples to evaluate; use fewer processes or a smaller --eval-batch")
    return task.metrics({name: accelerator.reduce(value, "sum") for name, value in sums.items()})


def _share_buffers(student: nn.Module) -> None:
    """Batch norms' statistics are the first process's, as they are saved. DDP sees to it by itself, FSDP does not."""
    for value in student.state_dict().values():
        if not isinstance(value, DTensor) and value.is_floating_point():
            broadcast(value)


def _length(batches: Any) -> int:
    """Number of batches; 0 for a stream, which has no length."""
    try:
        return len(batches)
    except TypeError:
        return 0
