"""Batches are a function of (seed, epoch, position): they start anywhere, for any number of processes."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from timm.data import create_transform
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data._utils.pin_memory import pin_memory
from torchvision.transforms import Compose

from labelflow.chance import Purpose, drawn_from
from labelflow.data import Data, World, eval_batches, on_device, train_batches, train_transform
from labelflow.data.batches import Draw, EvalBatches, TrainBatches, fit_micro_batch
from labelflow.data.images import Decode, to_rgb
from labelflow.data.views import Views, load_sample

CPU = torch.device("cpu")
HOW = {"batch": 12, "micro_batch": 3, "updates": 9, "seed": 1}


def updates(batches: TrainBatches, groups: int) -> list[list[list[Draw]]]:
    dealt = list(batches)
    return [dealt[first : first + groups] for first in range(0, len(dealt), groups)]


@given(start=st.integers(0, 9), repeats=st.integers(1, 4), samples=st.integers(12, 50))
def test_they_start_anywhere(start: int, repeats: int, samples: int) -> None:
    whole = list(TrainBatches(samples, **HOW, repeats=repeats))
    rest = TrainBatches(samples, **HOW, repeats=repeats, first_update=start)
    assert list(rest) == whole[start * 4 :]
    assert len(rest) == len(list(rest))


@pytest.mark.parametrize("processes", [2, 4])
def test_any_number_of_processes_shares_the_same_groups(processes: int) -> None:
    alone = updates(TrainBatches(40, **HOW), 4)
    shared = [
        updates(TrainBatches(40, **HOW, rank=rank, processes=processes), 4 // processes) for rank in range(processes)
    ]
    for number, groups in enumerate(alone):
        # in the order in which the engine counts groups: step · processes + rank
        dealt = [part[number][step] for step in range(4 // processes) for part in shared]
        assert dealt == groups


def test_an_epoch_shows_a_sample_at_most_once_in_another_order_each_time() -> None:
    draws = [draw for batch in TrainBatches(40, **HOW) for draw in batch]
    epochs = [[draw.sample for draw in draws if draw.epoch == epoch] for epoch in range(3)]
    assert all(len(epoch) == len(set(epoch)) == 36 for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert len({(draw.epoch, draw.position) for draw in draws}) == len(draws)


def test_repeats_come_in_different_groups_and_look_different() -> None:
    batches = list(TrainBatches(40, **HOW, repeats=3))
    first_epoch = [draw for batch in batches for draw in batch if draw.epoch == 0]
    assert set(Counter(draw.sample for draw in first_epoch).values()) == {3}
    assert all(len({draw.sample for draw in group}) == len(group) for group in batches)
    data = Data(image_size=32, repeats=3, workers=0)
    read = list(
        train_batches(World("train", 40, 32), data, **HOW | {"updates": 1}, rank=0, processes=1, first_update=0)
    )
    images, samples = torch.cat([b.pixels for b in read]), [draw.sample for group in batches[:4] for draw in group]
    for sample in set(samples):
        copies = images[[place for place, one in enumerate(samples) if one == sample]]
        assert not torch.equal(copies[0], copies[1])
        assert not torch.equal(copies[1], copies[2])


@pytest.mark.parametrize("workers", [1, 2])
def test_the_number_of_workers_makes_no_difference(workers: int) -> None:
    def read(workers: int) -> list[torch.Tensor]:
        data = Data(image_size=32, workers=workers)
        source = World("train", 40, 32)
        batches = train_batches(source, data, **HOW | {"updates": 4}, rank=0, processes=1, first_update=1)
        return [batch.images for batch in on_device(batches, CPU)]

    alone, helped = read(0), read(workers)
    assert len(alone) == len(helped) == 12
    assert all(torch.equal(one, other) for one, other in zip(alone, helped, strict=True))


def timms(data: Data, training: bool) -> Callable[[Image.Image], Tensor]:
    """From an image to a normalised tensor, at once."""
    augmented = {"auto_augment": data.auto_augment, "re_prob": data.erasing, "re_mode": "pixel", "scale": data.scale}
    return create_transform(
        data.image_size,
        is_training=training,
        interpolation=data.interpolation,
        crop_pct=data.test_crop,
        mean=data.mean,
        std=data.std,
        **augmented if training else {},
    )


@pytest.mark.parametrize("workers", [0, 1])
def test_models_see_bit_for_bit_what_timms_transforms_make(workers: int) -> None:
    """Workers send bytes, which are normalised and erased later; what is erased shows other noise."""
    data = Data(image_size=32, erasing=0.5, auto_augment="rand-m7-mstd0.5-inc1", workers=workers)
    world = World("train", 40, 32)
    transform = timms(data, training=True)
    draws = list(TrainBatches(40, **HOW))
    batches = list(on_device(train_batches(world, data, **HOW), CPU))  # all, so that no worker outlives a failure
    erased = 0
    for group, batch in zip(draws, batches, strict=True):
        for draw, image in zip(group, batch.images, strict=True):
            with drawn_from(HOW["seed"], Purpose.VIEW, draw.epoch, draw.position):
                *steps, erasing = transform.transforms
                before = Compose(steps)(world.load(draw.sample)[0])
                expected = erasing(before.clone())
            assert torch.equal(image[expected == before], before[expected == before])
            assert (image != before)[expected != before].all()
            erased += int((expected != before).any())
    assert 0.3 < erased / len(draws) / len(draws[0]) < 0.7
    val, transform = World("val", 10, 32), timms(data, training=False)
    expected = torch.stack([transform(val.load(index)[0]) for index in range(10)])
    loader = eval_batches(val, data, batch=4, rank=0, processes=1)
    assert torch.equal(torch.cat([batch.images for batch in on_device(loader, CPU)]), expected)


def test_a_batch_travels_in_a_quarter_of_its_bytes() -> None:
    source, data = World("train", 40, 32), Data(image_size=32, erasing=0.0, workers=0)
    batch = next(train_batches(source, data, **HOW))
    assert batch.to(CPU).images.nbytes == 4 * batch.pixels.nbytes
    assert batch.to(CPU).images.is_contiguous()
    assert not batch.patches.found
    batch = next(train_batches(source, replace(data, erasing=1.0), **HOW))
    assert batch.patches.found
    assert not any(isinstance(leaf, Tensor) for leaf in tree_leaves(batch.patches))  # noise is not sent


def test_pinning_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader takes batches apart to pin their tensors, and puts them together again."""
    pinned: list[int] = []
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor, *_: pinned.append(tensor.numel()) or tensor.clone())
    batch = next(train_batches(World("train", 40, 32), Data(image_size=32, erasing=1.0, workers=0), **HOW))
    again = pin_memory(batch)
    assert pinned == [part.numel() for part in batch[:3]]
    assert torch.equal(again.to(CPU).images, batch.to(CPU).images)


@given(samples=st.integers(1, 40), batch=st.integers(1, 9), processes=st.integers(1, 4))
def test_an_evaluation_counts_every_sample_once(samples: int, batch: int, processes: int) -> None:
    dealt = [list(EvalBatches(samples, batch=batch, rank=rank, processes=processes)) for rank in range(processes)]
    assert len({len(part) for part in dealt}) == 1
    counted = [draw.sample for part in dealt for group in part for draw in group if draw.weight]
    assert sorted(counted) == list(range(samples))


def test_an_evaluation_can_be_read_again() -> None:
    loader = eval_batches(World("val", 10, 32), Data(image_size=32, workers=0), batch=4, rank=0, processes=1)
    first, second = ([batch.labels.tolist() for batch in loader] for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"micro_batch": 5}, "cannot be cut"),
        ({"processes": 3}, "multiple of 9"),
        ({"batch": 60}, "smaller batch"),
    ],
)
def test_what_does_not_fit(how: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainBatches(40, **HOW | how)


@given(size=st.integers(2, 16), count=st.integers(1, 4), processes=st.integers(1, 4), more=st.floats(1, 3.9))
def test_micro_batches_that_fit(size: int, count: int, processes: int, more: float) -> None:
    """The largest that divide, up to what was asked for."""
    batch, wish = size * count * processes, int(more * size)
    fitted = fit_micro_batch(batch, wish, processes)
    assert fitted == max(one for one in range(1, wish + 1) if batch % (one * processes) == 0)
    TrainBatches(batch, **HOW | {"batch": batch, "micro_batch": fitted, "processes": processes})


@pytest.mark.parametrize(("batch", "micro_batch", "processes"), [(127, 64, 1), (10, 4, 3), (2, 8, 4), (7, 3, 1)])
def test_batches_that_can_hardly_be_cut(batch: int, micro_batch: int, processes: int) -> None:
    with pytest.raises(ValueError, match=f"a multiple of {micro_batch * processes}, or another"):
        fit_micro_batch(batch, micro_batch, processes)


class Damaged(World):
    """A world some of whose samples cannot be read."""

    damaged: frozenset[int] = frozenset()

    def load(self, index: int, decode: Decode = to_rgb) -> tuple[Any, int]:
        if index in self.damaged:
            raise OSError(f"broken in the middle of {index}")
        return super().load(index, decode)


def test_the_next_readable_sample_takes_a_damaged_ones_place_in_training() -> None:
    world = Damaged("train", 40, 32)
    world.damaged = frozenset({38, 39, 0})
    views = Views(world, train_transform(Data(image_size=32, workers=0)), seed=1, training=True)
    view = views[Draw(38, epoch=2, position=5)]
    assert (view.label, view.weight) == (world.load(1)[1], 1.0)
    assert str(view.problem) == f"{world.name(38)}: broken in the middle of 38"  # the one that was asked for
    assert (view.image == views[Draw(1, epoch=2, position=5)].image).all()
    assert views[Draw(1, epoch=2, position=5)].problem is None
    world.damaged = frozenset(range(40))
    with pytest.raises(ValueError, match=r"cannot read 20 samples in a row, the first of which is .*: broken"):
        views[Draw(3, epoch=0, position=0)]


def test_a_damaged_sample_does_not_count_in_an_evaluation() -> None:
    world = Damaged("val", 8, 32)
    world.damaged = frozenset({3})
    views = Views(world, train_transform(Data(image_size=32, workers=0)), seed=1, training=False)
    assert [views[Draw(number, 0, number)].weight for number in range(8)] == [1, 1, 1, 0, 1, 1, 1, 1]
    assert str(views[Draw(3, 0, 3)].problem) == f"{world.name(3)}: broken in the middle of 3"


def test_a_problem_names_its_sample_once() -> None:
    class Misfits(Damaged):
        def load(self, index: int, decode: Decode = to_rgb) -> tuple[Any, int]:
            raise ValueError(f"{self.name(index)} has no pixels")

    world = Misfits("val", 8, 32)
    index, sample, problem = load_sample(world, world.load, 5, training=False, blank=lambda: "blank")
    assert (index, sample, str(problem)) == (5, "blank", f"{world.name(5)} has no pixels")
