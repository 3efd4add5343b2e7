"""Samples as a model sees them, each view drawn from (seed, epoch, position), in batches that can start anywhere."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, get_worker_info

from labelflow.chance import Purpose, generator, restored_generators, seed_generators
from labelflow.data.deferred import Deferred, Plan
from labelflow.data.erasing import Patch, Patches
from labelflow.data.geometry import Geometry
from labelflow.data.images import Decode, to_rgb
from labelflow.data.normalise import Normalise
from labelflow.data.transforms import Transform
from labelflow.data.unreadable import Problem
from labelflow.sparse import TokenLabels

Sample = TypeVar("Sample")
TRIES = 20  # samples to try in training before giving up


class Source(Protocol):
    """A map-style data set."""

    @property
    def classes(self) -> Sequence[str]: ...
    def __len__(self) -> int: ...
    def load(self, index: int, decode: Decode = to_rgb) -> tuple[Any, int]:
        """The image, which `decode` gets as soon as it is open, and its label."""
        ...

    def name(self, index: int) -> str:
        """For people."""
        ...

    def key(self, index: int) -> str:
        """The same for the same sample, wherever the data lies: labels are stored under it."""
        ...


class Labeller(Protocol):
    """Dense labels of training samples."""

    def __call__(self, key: str, geometry: Geometry) -> TokenLabels: ...


class Draw(NamedTuple):
    """One sample at one position of an epoch."""

    sample: int
    epoch: int
    position: int
    weight: float = 1.0  # 0 fills up the last batch of an evaluation


class View(NamedTuple):
    image: Any  # a tensor (3, H, W), uint8 if it is to be one of a batch; or a Deferred one
    label: int
    weight: float
    problem: Problem | None = None  # why the sample could not be read, if it could not
    dense: TokenLabels | None = None
    patch: Patch | None = None  # what random erasing puts into it


class Batch(NamedTuple):
    images: Tensor  # (B, 3, H, W), normalised
    labels: Tensor  # (B,) long
    weights: Tensor  # (B,): 0 where a sample does not count
    problems: list[Problem]  # samples that could not be read
    dense: TokenLabels | None = None  # labels of tokens, where there are any


class PixelBatch(NamedTuple):
    """A batch as workers make it: a quarter of the bytes, and the rest is done on the device."""

    pixels: Tensor  # (B, 3, H, W) uint8, in any layout
    labels: Tensor  # as of a Batch
    weights: Tensor
    problems: list[Problem]
    dense: TokenLabels | None
    patches: Patches  # what random erasing puts into the normalised images
    normalise: Normalise
    plan: Plan | None  # what is still to be done with the pixels, with `--augment device`

    def to(self, device: torch.device) -> Batch:
        pixels, labels, weights = (part.to(device, non_blocking=True) for part in self[:3])
        pixels = pixels.contiguous()
        if self.plan:
            pixels = self.plan.to(device).apply(pixels)
        images = self.normalise(pixels)
        self.patches.to(device).paint(images)
        return Batch(images, labels, weights, self.problems, self.dense.to(device) if self.dense else None)


def collate(views: list[View], normalise: Normalise) -> PixelBatch:
    deferred = [view.image for view in views if isinstance(view.image, Deferred)]  # all or none
    return PixelBatch(
        _stack([image.pixels for image in deferred] or [view.image for view in views]),
        torch.tensor([view.label for view in views]),
        torch.tensor([view.weight for view in views]),
        [view.problem for view in views if view.problem],
        TokenLabels.stack([view.dense for view in views if view.dense]) if views[0].dense else None,  # all or none
        Patches.stack([view.patch for view in views]),
        normalise,
        Plan.stack(deferred, normalise.mean_colour) if deferred else None,
    )


def _stack(images: list[Tensor]) -> Tensor:
    """(B, 3, H, W), in memory as they are: Pillow has the three bytes of a pixel side by side, and the device is
    quicker at moving them apart than a worker."""
    last = not images[0].is_contiguous()
    parts = [image.permute(1, 2, 0) for image in images] if last else images
    batch = empty_batch(len(images), parts[0])
    for place, part in zip(batch, parts, strict=True):
        place.copy_(part)
    return batch.permute(0, 3, 1, 2) if last else batch


def empty_batch(count: int, like: Tensor) -> Tensor:
    """Memory for so many tensors; in a worker it is shared with the main process, as that of `default_collate`."""
    if get_worker_info() is None:
        return like.new_empty(count, *like.shape)
    storage = like._typed_storage()._new_shared(count * like.numel(), device=like.device)
    return like.new(storage).view(count, *like.shape)


class Named(Protocol):
    """Samples that may turn out to be damaged."""

    def __len__(self) -> int: ...
    def name(self, index: int) -> str: ...


def load_sample(
    source: Named, load: Callable[[int], Sample], index: int, training: bool, blank: Callable[[], Sample]
) -> tuple[int, Sample, Problem | None]:
    """A sample, its index, and why the one that was asked for could not be read, if so. In training the next
    readable sample takes its place, in an evaluation a blank one, which must not count."""
    problem = None
    for place in range(index, index + (TRIES if training else 1)):
        index = place % len(source)
        try:
            return index, load(index), problem
        except Exception as error:  # damaged files make PIL raise all kinds of them
            problem = problem or Problem(source.name(index), str(error))
    if training:
        raise ValueError(f"cannot read {TRIES} samples in a row, the first of which is {problem}")
    return index, blank(), problem


class Views(Dataset[View]):
    """A source's samples, transformed; `load_sample` says what becomes of those that cannot be read."""

    def __init__(
        self,
        source: Source,
        transform: Transform,
        seed: int,
        training: bool,
        labeller: Labeller | None = None,
    ) -> None:
        self.source, self.transform, self.seed, self.training = source, transform, seed, training
        self.labeller = labeller

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, draw: Draw) -> View:
        return self.__getitems__([draw])[0]

    def __getitems__(self, draws: Sequence[Draw]) -> list[View]:
        """Those of a batch, which DataLoader asks for at once."""
        with restored_generators():
            return [self._view(draw) for draw in draws]

    def _view(self, draw: Draw) -> View:
        seed_generators(self.seed, Purpose.VIEW, draw.epoch, draw.position)
        load = partial(self.source.load, decode=self.transform.decode)
        index, (decoded, label), problem = load_sample(self.source, load, draw.sample, self.training, self._blank)
        tracked = self.transform(decoded)
        counts = self.training or not problem
        dense = self.labeller(self.source.key(index), tracked.geometry) if self.labeller else None
        return View(tracked.image, label, draw.weight if counts else 0.0, problem, dense, tracked.patch)

    def _blank(self) -> tuple[Any, int]:
        return self.transform.decode(Image.new("RGB", (32, 32))), 0


class TrainBatches:
    """Which samples make up each batch of a whole training run, for one process.

    An update is `batch` samples, cut into micro-batches. Each is mixed within itself and passes through the model at
    once; process r of R takes those numbered r, r+R, r+2R, …. So the samples, the pairs and the boxes of an update do
    not depend on how many processes share it.

    Repeated augmentation (Hoffer et al., 2020): a sample comes `repeats` times in a row, dealt to different
    micro-batches, and an epoch has as many samples as without.
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
    ) -> None:
        check_micro_batches(batch, micro_batch, processes)
        if samples < batch:
            raise ValueError(f"a batch of {batch} is more than the {samples} training samples; choose a smaller batch")
        self.samples, self.batch, self.repeats, self.seed = samples, batch, repeats, seed
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
                order = torch.randperm(self.samples, generator=generator(self.seed, Purpose.ORDER, epoch))
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
