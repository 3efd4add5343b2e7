"""Samples of dense tasks on their way to a model; each view is a function of (seed, epoch, position).

The same as `labelflow.data` does for classification, for samples of any kind.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Generator
from torch.utils.data import DataLoader, Dataset

from labelflow.chance import Purpose, generator
from labelflow.data.batches import Draw, EvalBatches, TrainBatches
from labelflow.data.loader import make_loader
from labelflow.data.unreadable import Problem
from labelflow.data.views import load_sample
from labelflow.data.world import World
from labelflow.spec import parse


class DenseSource(Protocol):
    """A map-style data set of images and what is true of them."""

    @property
    def classes(self) -> Sequence[str]: ...
    def __len__(self) -> int: ...
    def load(self, index: int) -> Any: ...
    def blank(self) -> Any:
        """What stands in for a sample that can't be read, and does not count."""
        ...

    def name(self, index: int) -> str:
        """For people."""
        ...


class View(NamedTuple):
    """One view of one sample."""

    content: Any
    weight: float  # 0 where it does not count
    problem: Problem | None  # why the sample could not be read, if it could not


Collate = Callable[[list[View]], Any]


class Samples(Dataset[View]):
    """A source's samples, each transformed by `view(sample, generator)`; `load_sample` says what becomes of those that
    cannot be read."""

    def __init__(
        self, source: DenseSource, view: Callable[[Any, Generator], Any], seed: int = 0, training: bool = False
    ) -> None:
        self.source, self.view, self.seed, self.training = source, view, seed, training

    def __getitem__(self, draw: Draw) -> View:
        _, sample, problem = load_sample(self.source, self.source.load, draw.sample, self.training, self.source.blank)
        chance = generator(self.seed, Purpose.VIEW, draw.epoch, draw.position)
        return View(self.view(sample, chance), draw.weight if self.training or not problem else 0.0, problem)


def load_training(samples: Samples, collate: Collate, workers: int, **plan: Any) -> Iterator[Any]:
    """The micro-batches of one process, update by update, across epochs; plan: batch, micro_batch, updates, rank,
    processes, first_update (an update to begin with), as `TrainBatches` has them."""
    batches = TrainBatches(len(samples.source), seed=samples.seed, **plan)
    return iter(make_loader(samples, collate, workers, batch_sampler=batches))


def load_evaluation(samples: Samples, collate: Collate, workers: int, **plan: Any) -> "DataLoader[Any]":
    """Every sample once, dealt to the processes; can be read again and again. plan: batch, rank, processes."""
    batches = EvalBatches(len(samples.source), **plan)
    return make_loader(samples, collate, workers, batch_sampler=batches)


def is_world(name: str) -> bool:
    return name.partition("(")[0] == "world"


def open_world(name: str, split: str, size: int) -> World:
    """`world(train=2048, val=256, seed=0, objects=2, size=…)`, scenes of several objects."""
    defaults = {"train": 2048, "val": 256, "seed": 0, "objects": 2, "size": size}
    arguments = defaults | parse(name).arguments
    if arguments.keys() != defaults.keys():
        raise ValueError(f"the sample world takes train, val, seed, objects and size, not {name!r}")
    length = arguments["train" if split == "train" else "val"]
    return World(split, length, arguments["size"], seed=arguments["seed"], objects=arguments["objects"])
