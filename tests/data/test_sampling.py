"""How often samples come: by definition, in each epoch, and whoever reads them."""

from collections import Counter
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy import ndarray

from labelflow.chance import generator
from labelflow.data import Data, Stream, World, train_batches
from labelflow.data.batches import TrainBatches
from labelflow.data.sampling import make_order, rounded

HOW: dict[str, Any] = {"batch": 12, "micro_batch": 3, "updates": 9, "seed": 1}


class Labelled(World):
    """Scenes that are said to be of these classes."""

    def __init__(self, labels: ndarray) -> None:
        super().__init__("train", len(labels), 32)
        self.given = labels

    @property
    def labels(self) -> ndarray:
        return self.given


def sizes(*counts: int) -> Labelled:
    """Of each class so many, in no order."""
    labels = np.repeat(np.arange(len(counts)), counts)
    return Labelled(np.random.default_rng(0).permutation(labels))


def mean_times(source: Labelled, sampling: str, epochs: int) -> ndarray:
    """How often each sample comes in an epoch, on average: (N,)"""
    order = make_order(sampling, source, seed=0)
    assert order is not None
    drawn = torch.cat([order(epoch) for epoch in range(epochs)])
    return np.bincount(drawn.numpy(), minlength=len(source)) / epochs


def test_the_order_of_old_runs_stays_as_it_was() -> None:
    """Numbers from before there were samplings."""
    source = sizes(25, 25)
    for order in (None, make_order("uniform", source, seed=7)):
        plain = TrainBatches(50, batch=12, micro_batch=3, updates=9, seed=7, order=order)
        assert [draw.sample for batch in list(plain)[:4] for draw in batch] == [
            16,
            1,
            24,
            2,
            0,
            10,
            18,
            47,
            15,
            19,
            23,
            28,
        ]
        late = TrainBatches(
            50, batch=12, micro_batch=3, updates=9, seed=7, order=order, rank=1, processes=2, first_update=5
        )
        assert [draw.sample for draw in next(iter(late))] == [31, 18, 35]


@given(counts=st.lists(st.integers(1, 30), min_size=2, max_size=8), p=st.floats(0, 1), epoch=st.integers(0, 3))
def test_every_class_has_its_part_of_an_epoch(counts: list[int], p: float, epoch: int) -> None:
    """P(c) ∝ n_c^p, rounded down or up, and so does each image of it."""
    source = sizes(*counts)
    order = make_order(f"power(p={p})", source, seed=3)
    assert order is not None
    drawn = order(epoch).numpy()
    assert len(drawn) == sum(counts)
    parts = [count**p for count in counts]
    for label, count in enumerate(counts):
        expected = sum(counts) * parts[label] / sum(parts)
        assert abs((source.labels[drawn] == label).sum() - expected) < 1 + 1e-6
        times = np.bincount(drawn, minlength=len(source))[source.labels == label]
        assert abs(times - expected / count).max() < 1 + 1e-6


@pytest.mark.parametrize(("sampling", "p"), [("balanced", 0), ("sqrt", 0.5), ("power(p=0.25)", 0.25)])
def test_every_image_comes_as_often_as_its_class_says(sampling: str, p: float) -> None:
    counts = [40, 9, 1]
    source = sizes(*counts)
    times = mean_times(source, sampling, epochs=600)
    for label, count in enumerate(counts):
        expected = 50 * count**p / sum(n**p for n in counts) / count
        assert abs(times[source.labels == label] - expected).max() < 0.1


def test_repeat_factors_are_those_of_lvis() -> None:
    """r = max(1, √(t/f)), 50 positions shared in proportion."""
    counts, threshold = [40, 9, 1], 0.5
    source = sizes(*counts)
    factors = [max(1.0, sqrt(threshold / (count / 50))) for count in counts]
    total = sum(count * factor for count, factor in zip(counts, factors, strict=True))
    times = mean_times(source, f"repeat_factor(threshold={threshold})", epochs=600)
    for label, factor in enumerate(factors):
        assert abs(times[source.labels == label] - 50 * factor / total).max() < 0.1


def test_an_image_with_several_classes_repeats_as_its_rarest() -> None:
    has = np.array([[True, False], [True, True], [True, False], [True, False], [False, False]])
    times = mean_times(Labelled(has), "repeat_factor(threshold=0.8)", epochs=600)
    factors = np.array([1, 2, 1, 1, 1])  # √(0.8 / 0.2)
    assert abs(times - 5 * factors / factors.sum()).max() < 0.1
    with pytest.raises(ValueError, match="several classes can't be balanced by class: --sampling repeat_factor"):
        make_order("balanced", Labelled(has), seed=0)


@given(wanted=st.lists(st.floats(0.01, 100), min_size=1, max_size=40), seed=st.integers(0, 99))
def test_rounding_keeps_the_sum(wanted: list[float], seed: int) -> None:
    times = rounded(torch.tensor(wanted), generator(seed))
    assert times.sum() == len(wanted)
    expected = np.array(wanted) * len(wanted) / sum(wanted)
    assert (abs(times.numpy() - expected) < 1 + 1e-4).all()


def test_classes_that_are_equal_stay_a_permutation() -> None:
    order = make_order("balanced", sizes(6, 6, 6), seed=0)
    assert order is not None
    assert sorted(order(0).tolist()) == list(range(18))
    assert order(0).tolist() != order(1).tolist()


def test_positions_are_mixed() -> None:
    """Repeats of an image do not stand side by side, and classes do not follow one another."""
    source = sizes(90, 10)
    order = make_order("balanced", source, seed=0)
    assert order is not None
    labels = source.labels[order(0).numpy()]
    assert 35 <= (labels[1:] != labels[:-1]).sum() <= 65


@given(start=st.integers(0, 9), repeats=st.integers(1, 3))
def test_batches_start_anywhere(start: int, repeats: int) -> None:
    def batches(**how: Any) -> TrainBatches:
        order = make_order("balanced", sizes(30, 8, 2), seed=1)
        return TrainBatches(40, **HOW, repeats=repeats, order=order, **how)

    whole = list(batches())
    assert list(batches(first_update=start)) == whole[start * 4 :]
    shared = [list(batches(rank=rank, processes=2)) for rank in (0, 1)]
    assert [batch for pair in zip(*shared, strict=True) for batch in pair] == whole


@pytest.mark.parametrize("workers", [1, 2])
def test_the_number_of_workers_makes_no_difference(workers: int) -> None:
    source = sizes(30, 8, 2)

    def read(workers: int) -> list[torch.Tensor]:
        data = Data(image_size=32, workers=workers)
        order = make_order("sqrt", source, seed=1)
        return [batch.pixels for batch in train_batches(source, data, **HOW | {"updates": 4}, order=order)]

    assert all(map(torch.equal, read(0), read(workers)))


def test_repeated_augmentation_repeats_what_is_drawn() -> None:
    order = make_order("balanced", sizes(30, 8, 2), seed=1)
    draws = [draw for batch in TrainBatches(40, **HOW, repeats=2, order=order) for draw in batch if draw.epoch == 0]
    assert all(times % 2 == 0 for times in Counter(draw.sample for draw in draws).values())


def test_what_is_refused() -> None:
    source = sizes(30, 10)
    for sampling, message in {
        "balancd": "there is no sampling 'balancd'; did you mean balanced",
        "power(p=2)": "p, a power of a class's size, must lie in",
        "repeat_factor(threshold=0)": "threshold, a fraction of all images, must lie in",
        "repeat_factor(threshold=0.25)": "repeats nothing: the rarest class is in 0.25 of all images",
        "sqrt(p=1)": "its settings are: none",
    }.items():
        with pytest.raises(ValueError, match=message.replace("(", r"\(")):
            make_order(sampling, source, seed=0)
    stream = Stream(40, ["a", "b"], lambda epoch: iter(()))
    assert make_order("uniform", stream, seed=0) is None
    with pytest.raises(ValueError, match="a stream does not tell the labels of its samples beforehand"):
        make_order("balanced", stream, seed=0)
