"""Images with any number of labels."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from labelflow.data.normalise import Normalise
from labelflow.data.several import LabelLists, is_multi_label, multi_hot
from labelflow.data.views import View, collate

LABELS = st.lists(st.sets(st.integers(0, 4)), min_size=1, max_size=8)


def lists_of(labels: list[set[int]]) -> LabelLists:
    ids = [one for own in labels for one in sorted(own)]
    return LabelLists(np.array(ids, np.int32), np.cumsum([0, *map(len, labels)]), classes=5)


@given(LABELS, st.data())
def test_lists_hold_what_they_were_made_of(labels: list[set[int]], data: st.DataObject) -> None:
    lists = lists_of(labels)
    assert [set(lists.of(index).tolist()) for index in range(len(lists))] == labels
    assert [set(np.flatnonzero(row)) for row in lists.dense()] == labels
    places = data.draw(st.lists(st.integers(0, len(labels) - 1)))
    chosen = lists.at(np.array(places, np.int64))
    assert [set(chosen.of(index).tolist()) for index in range(len(chosen))] == [labels[place] for place in places]


def test_a_batch_of_several_labels_is_multi_hot() -> None:
    views = [View(np.zeros((2, 2, 3), np.uint8), multi_hot(own, 3), 1.0) for own in ([0, 2], [], [1])]
    batch = collate(views, Normalise((0.5,) * 3, (0.5,) * 3))
    assert batch.labels.dtype == torch.float32
    assert batch.labels.tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    assert not is_multi_label(object())
