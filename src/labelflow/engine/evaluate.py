"""Evaluation on all processes."""

from collections.abc import Callable, Sized

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from labelflow.engine.task import Evaluated


@torch.no_grad()
def evaluate(
    task: Evaluated, student: nn.Module, accelerator: Accelerator, advance: Callable[[float], None] = lambda part: None
) -> dict[str, float]:
    """The task's metrics over its evaluation samples. `advance` is told how much is done, from 0 to 1."""
    training = student.training
    student.eval()
    sums: dict[str, Tensor] = {}
    batches = task.eval_batches(accelerator.process_index, accelerator.num_processes)
    count = len(batches) if isinstance(batches, Sized) else 0
    for number, batch in enumerate(batches, 1):
        task.unreadable(batch.problems)
        for name, value in task.measure(student, batch.to(accelerator.device)).items():
            sums[name] = sums[name] + value if name in sums else value
        advance(number / count if count else 0.0)
    student.train(training)
    return task.metrics({name: accelerator.reduce(value, "sum") for name, value in sums.items()})
