"""Batches on their way to a model: workers, memory pinning, streams."""

import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from labelflow.chance import Purpose, drawn_from, generator
from labelflow.data.batches import Draw, EvalBatches, Order, TrainBatches, check_micro_batches
from labelflow.data.growth import BySize, Growth, at_epoch
from labelflow.data.normalise import Normalise
from labelflow.data.preprocessing import Preprocessing
from labelflow.data.settings import Data
from labelflow.data.sources import Stream
from labelflow.data.transforms import Transform, train_transform
from labelflow.data.views import Labeller, PixelBatch, Source, View, Views, collate
from labelflow.process import core_count


class Streamed(IterableDataset[View]):
    """Views of a stream. Which worker reads what depends on how many there are, and so does the run.

    Of the first `skipped` batches, which nobody wants, images are not decoded.
    """

    def __init__(
        self, stream: Stream, transform: Transform, seed: int, epoch: int, batch: int, skipped: int = 0
    ) -> None:
        self.stream, self.transform, self.seed, self.epoch = stream, transform, seed, epoch
        self.batch, self.skipped = batch, skipped

    def __iter__(self) -> Iterator[View]:
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        for position, (image, label) in enumerate(self.stream.open(self.epoch, decode=lambda image: image)):
            if position // self.batch * workers + number < self.skipped:  # workers take turns, until one is at its end
                yield View(torch.empty(3, 1, 1, dtype=torch.uint8), label, 0.0)
                continue
            with drawn_from(self.seed, Purpose.VIEW, self.epoch, position, number):
                tracked = self.transform(self.transform.decode(image))
                yield View.of(tracked, label, 1.0, epoch=self.epoch)


def train_batches(
    source: Source | Stream,
    data: Data,
    *,
    batch: int,
    micro_batch: int,
    updates: int,
    seed: int,
    rank: int = 0,
    processes: int = 1,
    first_update: int = 0,
    labeller: Labeller | BySize[Labeller] | None = None,
    growth: Growth | None = None,
    order: Order | None = None,
    spatial: bool = False,
) -> Iterator[PixelBatch]:
    """The micro-batches of one process, update by update, from `first_update` on, across epochs. growth: where the size
    of images is not `data.image_size` throughout. order: see `make_order`; a stream has its own. spatial: give each
    image without changes of colours, too."""
    transform: Transform | BySize[Transform] = train_transform(data, spatial)
    if growth:
        by_size = {size: train_transform(replace(data, image_size=size), spatial) for size in set(growth.sizes)}
        transform = BySize(growth, by_size)
    if isinstance(source, Stream):
        if labeller is not None:
            raise ValueError(f"a stream such as {data.source} does not name its samples, so that labels can't be found")
        check_micro_batches(batch, micro_batch, processes)
        return _stream_micro_batches(
            source, transform, data, batch, micro_batch, updates, seed, processes, first_update
        )
    batches = TrainBatches(
        len(source),
        batch=batch,
        micro_batch=micro_batch,
        updates=updates,
        seed=seed,
        repeats=data.repeats,
        rank=rank,
        processes=processes,
        first_update=first_update,
        order=order,
    )
    views = Views(source, transform, seed, training=True, labeller=labeller)
    return iter(_load(views, data, Normalise(data.mean, data.std), batch_sampler=batches))


def _stream_micro_batches(
    source: Stream,
    transform: Transform | BySize[Transform],
    data: Data,
    batch: int,
    micro_batch: int,
    updates: int,
    seed: int,
    processes: int,
    first_update: int,
) -> Iterator[PixelBatch]:
    """A stream can't be positioned: a run that is resumed within an epoch reads what it has seen of it once more."""
    per_epoch, per_update = len(source) // batch, batch // micro_batch // processes
    normalise = Normalise(data.mean, data.std)
    for epoch in range(first_update // per_epoch, -(-updates // per_epoch)):
        skipped = max(0, first_update - epoch * per_epoch) * per_update
        last = min(per_epoch, updates - epoch * per_epoch) * per_update
        done = 0
        while done < last:  # again from the beginning, if shards were dealt unevenly
            before = done
            views = Streamed(source, at_epoch(transform, epoch), seed, epoch, micro_batch, skipped - done)
            chance = generator(seed, Purpose.ORDER, epoch)  # WebDataset shuffles by the workers' seeds
            for read in _load(views, data, normalise, batch_size=micro_batch, drop_last=True, generator=chance):
                done += 1
                if done > skipped:
                    yield read
                if done == last:
                    break
            if done == before:
                raise ValueError(f"the stream {data.source} gave no whole micro-batch of {micro_batch} samples")


def eval_batches(
    source: Source | Stream, data: Data, *, batch: int, rank: int, processes: int
) -> "DataLoader[PixelBatch]":
    """Every sample once, dealt to the processes (streams: as evenly as their shards); can be read again and again."""
    how = Preprocessing.of_data(data)
    if isinstance(source, Stream):
        return _load(Streamed(source, how.view, 0, 0, batch), data, how.normalise, batch_size=batch)
    batches = EvalBatches(len(source), batch=batch, rank=rank, processes=processes)
    return _load(Views(source, how.view, 0, training=False), data, how.normalise, batch_sampler=batches)


def fixed_batches(
    source: Source, how: Preprocessing, data: Data, batches: Iterable[list[Draw]]
) -> Iterator[PixelBatch]:
    """Exactly these samples, each with one view."""
    views = Views(source, how.view, 0, training=False)
    return iter(_load(views, data, how.normalise, batch_sampler=batches))


def _load(views: Any, data: Data, normalise: Normalise, **how: Any) -> "DataLoader[PixelBatch]":
    return make_loader(views, partial(collate, normalise=normalise), data.workers, **how)


def make_loader(dataset: Any, collate: Callable[[list[Any]], Any], workers: int, **how: Any) -> "DataLoader[Any]":
    """Batches, read by `workers` processes; -1: as many as there are cores for them, at most 8."""
    workers = workers if workers >= 0 else min(8, core_count())
    return DataLoader(
        dataset,
        collate_fn=collate,
        num_workers=workers,
        pin_memory=torch.cuda.is_available(),
        persistent_workers=workers > 0,
        worker_init_fn=_ignore_signals if workers else None,
        **how,
    )


def _ignore_signals(worker: int) -> None:
    """Ctrl-C and a scheduler's SIGTERM reach every process; what to do is the main one's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
