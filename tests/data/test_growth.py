"""Image sizes as a function of the epoch, and batches of them that start anywhere."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from labelflow.data import BySize, Data, Growth, Stream, World, on_device, train_batches
from labelflow.data.geometry import Geometry
from labelflow.data.growth import at_epoch

DATA = Data(image_size=32, workers=0)
HOW: dict[str, Any] = {"batch": 8, "micro_batch": 4, "updates": 12, "seed": 1}  # 24 samples: 4 epochs of 3 updates
GROWTH = Growth((16, 24, 32), epochs=4)
CPU = torch.device("cpu")


@given(sizes=st.lists(st.integers(1, 400), min_size=1, max_size=6), epochs=st.integers(6, 40))
def test_stages_are_equally_long_and_in_order(sizes: list[int], epochs: int) -> None:
    """Stage i of K has the epochs e with i ≤ K·e/E < i+1."""
    growth = Growth(tuple(sizes), epochs)
    stages = [[e for e in range(epochs) if i <= len(sizes) * e / epochs < i + 1] for i in range(len(sizes))]
    assert [growth(epoch) for epoch in range(epochs)] == [sizes[i] for i, stage in enumerate(stages) for _ in stage]
    assert max(map(len, stages)) - min(map(len, stages)) <= 1
    assert growth(epochs + 5) == sizes[-1]


def test_a_size_that_comes_twice_lasts_twice_as_long() -> None:
    assert [Growth((128, 128, 160, 224), 8)(epoch) for epoch in range(8)] == [128] * 4 + [160] * 2 + [224] * 2


@pytest.mark.parametrize(
    ("sizes", "epochs", "message"),
    [((0, 32), 4, "at least 1, not 0"), ((16, 24, 32), 2, "3 --sizes need as many epochs .* has 2")],
)
def test_what_does_not_fit(sizes: tuple[int, ...], epochs: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Growth(sizes, epochs)


def test_without_growth_there_is_one_part_for_all_epochs() -> None:
    assert at_epoch("always", 3) == "always"
    assert [at_epoch(BySize(GROWTH, {16: "a", 24: "b", 32: "c"}), epoch) for epoch in range(4)] == ["a", "a", "b", "c"]


@pytest.mark.parametrize("augment", ["workers", "device"])
def test_each_epoch_is_that_of_a_run_at_its_size(augment: str) -> None:
    """The same samples and draws, at the size that it has for the whole run there."""
    world, data = World("train", 24, 48), replace(DATA, augment=augment)
    grown = list(on_device(train_batches(world, data, **HOW, growth=GROWTH), CPU))
    assert [batch.epoch for batch in grown] == [epoch for epoch in range(4) for _ in range(6)]
    for size in (16, 24, 32):
        fixed = list(on_device(train_batches(world, replace(data, image_size=size), **HOW), CPU))
        own = [place for place, batch in enumerate(grown) if batch.images.shape[2:] == (size, size)]
        assert [GROWTH(grown[place].epoch) for place in own] == [size] * len(own)
        assert all(torch.equal(grown[place].images, fixed[place].images) for place in own)
        assert len(own) == {16: 12, 24: 6, 32: 6}[size]


@pytest.mark.parametrize(("update", "workers"), [(5, 0), (7, 1), (9, 2)])
def test_they_start_anywhere_with_any_number_of_workers(update: int, workers: int) -> None:
    """In the middle of an epoch, before and after a size changes; workers live through the changes."""
    world = World("train", 24, 48)
    whole = list(train_batches(world, DATA, **HOW, growth=GROWTH))
    data = replace(DATA, workers=workers)
    rest = list(train_batches(world, data, **HOW, growth=GROWTH, first_update=update))
    assert all(torch.equal(one.pixels, other.pixels) for one, other in zip(rest, whole[2 * update :], strict=True))
    assert [batch.epoch for batch in rest] == [batch.epoch for batch in whole[2 * update :]]


def test_all_processes_have_the_same_size() -> None:
    world = World("train", 24, 48)
    dealt = [train_batches(world, DATA, **HOW, growth=GROWTH, rank=rank, processes=2) for rank in range(2)]
    for one, other in zip(*dealt, strict=True):
        assert (one.epoch, one.pixels.shape) == (other.epoch, other.pixels.shape)


def test_streams_grow() -> None:
    def opening(epoch: int) -> Iterator[tuple[Image.Image, int]]:
        return ((Image.fromarray(np.full((40, 40, 3), 10 * n + epoch, np.uint8)), n % 3) for n in range(24))

    whole = list(train_batches(Stream(24, ["a", "b", "c"], opening), DATA, **HOW, growth=GROWTH))
    assert [batch.pixels.shape[2] for batch in whole] == [16] * 12 + [24] * 6 + [32] * 6
    assert [batch.epoch for batch in whole] == [epoch for epoch in range(4) for _ in range(6)]
    rest = train_batches(Stream(24, ["a", "b", "c"], opening), DATA, **HOW, growth=GROWTH, first_update=7)
    assert all(torch.equal(one.pixels, other.pixels) for one, other in zip(rest, whole[14:], strict=True))


def test_labels_are_made_for_the_size_of_their_epoch() -> None:
    asked: list[int] = []  # the sizes of labels

    class Labeller:
        def __init__(self, size: int) -> None:
            self.size = size

        def __call__(self, key: str, geometry: Geometry) -> "Labeller":
            asked.append(self.size)
            return self

        @staticmethod
        def stack(views: list["Labeller"]) -> Any:
            assert len({view.size for view in views}) == 1
            return views[0]

        def to(self, device: torch.device) -> "Labeller":
            return self

    labeller = BySize(GROWTH, {size: Labeller(size) for size in GROWTH.sizes})
    for batch in on_device(train_batches(World("train", 24, 48), DATA, **HOW, growth=GROWTH, labeller=labeller), CPU):
        assert batch.dense.size == batch.images.shape[2] == GROWTH(batch.epoch)
    assert asked == [16] * 48 + [24] * 24 + [32] * 24
