"""Which samples make up the batches of a run, and of an evaluation: an order that can be taken up anywhere."""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from labelflow.chance import Purpose, generator

Order = Callable[[int], Tensor]  # from an epoch to its samples, (N,): as many as there are, each once or not


class Draw(NamedTuple):
    """One sample at one position of an epoch."""

    sample: int
    epoch: int
    position: int
    weight: float = 1.0  # 0 fills up the last batch of an evaluation


def shuffled(samples: int, seed: int) -> Order:
    """Every sample once in an epoch."""
    return lambda epoch: torch.randperm(samples, generator=generator(seed, Purpose.ORDER, epoch))


class TrainBatches:
    """Which samples make up each batch of a whole training run, for one process.

    An update is `batch` samples, cut into micro-batches. Each is mixed within itself and passes through the model at
    once; process r of R takes those numbered r, r+R, r+2R, …. So the samples, the pairs and the boxes of an update do
    not depend on how many processes share it.

    Repeated augmentation (Hoffer et al., 2020): a sample comes `repeats` times in a row, dealt to different
    micro-batches, and an epoch has as many samples as without.

    order: which samples an epoch has, and in which order; `shuffled` if there is none.
    """

    def __init__(
        self,
        samples: int,
        *,
        batch: int,
        micro_batch: int,
        updates: int,
        seed: int,
        repeats: int = 1,
        rank: int = 0,
        processes: int = 1,
        first_update: int = 0,
        order: Order | None = None,
    ) -> None:
        check_micro_batches(batch, micro_batch, processes)
        if samples < batch:
            raise ValueError(f"a batch of {batch} is more than the {samples} training samples; choose a smaller batch")
        self.samples, self.batch, self.repeats = samples, batch, repeats
        self.order = order or shuffled(samples, seed)
        self.micro_batches = batch // micro_batch
        self.updates, self.first_update, self.rank, self.processes = updates, first_update, rank, processes

    def __len__(self) -> int:
        return (self.updates - self.first_update) * self.micro_batches // self.processes

    def __iter__(self) -> Iterator[list[Draw]]:
        per_epoch = self.samples // self.batch
        epoch, order = -1, torch.empty(0)
        for update in range(self.first_update, self.updates):
            if update // per_epoch != epoch:
                epoch = update // per_epoch
                order = self.order(epoch)
            first = update % per_epoch * self.batch
            for place in range(self.rank, self.micro_batches, self.processes):
                positions = range(first + place, first + self.batch, self.micro_batches)
                yield [Draw(int(order[position // self.repeats]), epoch, position) for position in positions]


class EvalBatches:
    """Every sample once, dealt to the processes; each has as many batches, filled up with samples of weight 0."""

    def __init__(self, samples: int, *, batch: int, rank: int = 0, processes: int = 1) -> None:
        self.samples, self.batch, self.rank, self.processes = samples, batch, rank, processes

    def __len__(self) -> int:
        return math.ceil(self.samples / (self.batch * self.processes))

    def __iter__(self) -> Iterator[list[Draw]]:
        for number in range(len(self)):
            first = (number * self.processes + self.rank) * self.batch
            last = first + self.batch
            if self.processes == 1:
                last = min(last, self.samples)
            yield [
                Draw(position % self.samples, 0, position, float(position < self.samples))
                for position in range(first, last)
            ]


def fit_micro_batch(batch: int, micro_batch: int, processes: int) -> int:
    """The largest size, up to this one, of micro-batches that a batch can be cut into for so many processes.

    >>> fit_micro_batch(batch=32, micro_batch=64, processes=1), fit_micro_batch(batch=120, micro_batch=64, processes=2)
    (32, 60)
    """
    wish = min(micro_batch, batch // processes)
    fits = next((size for size in range(wish, 0, -1) if batch % (size * processes) == 0), 0)
    if 4 * fits <= wish or fits == 1 < wish:  # too slow, or nothing to mix with
        several = f" for {processes} processes" if processes > 1 else ""
        raise ValueError(
            f"a batch of {batch} cannot be cut into micro-batches of about {micro_batch}{several}; choose a --batch "
            f"that is a multiple of {micro_batch * processes}, or another --micro-batch"
        )
    return fits


def check_micro_batches(batch: int, micro_batch: int, processes: int) -> None:
    if batch < 1 or micro_batch < 1 or batch % micro_batch:
        raise ValueError(
            f"a batch of {batch} cannot be cut into micro-batches of {micro_batch}; choose a --micro-batch that "
            "divides it"
        )
    if batch // micro_batch % processes:
        raise ValueError(
            f"a batch of {batch} has {batch // micro_batch} micro-batches of {micro_batch}, which {processes} "
            f"processes cannot share; choose a batch that is a multiple of {micro_batch * processes}, or a smaller "
            "--micro-batch"
        )
