"""Labels that an annotator makes on the way are those that a store would have given."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from labelflow.data.geometry import Geometry
from labelflow.labels.annotation import best_scores
from labelflow.labels.online import online_labels
from labelflow.labels.sampling import label_view
from labelflow.labels.store import LabelMap
from labels.test_sampling import WHOLE, dense, pooled
from pretend import DEVICE, pretending

GRIDS = st.tuples(st.integers(1, 6), st.integers(1, 6))


@given(cells=GRIDS, grid=GRIDS, top=st.integers(1, 9), seed=st.integers(0, 99))
def test_a_view_s_labels_are_those_of_roi_align_on_what_was_seen(
    cells: tuple[int, int], grid: tuple[int, int], top: int, seed: int
) -> None:
    logits = 3 * torch.randn(2, cells[0] * cells[1], 7, generator=torch.Generator().manual_seed(seed))
    found = online_labels(logits, cells, grid, top)
    scores, classes = best_scores(logits, min(top, 7), "rest")
    scores = scores.half().float()  # as stores have them
    full = torch.zeros_like(logits).scatter(2, classes, scores).transpose(1, 2).unflatten(2, cells)  # (B, C, h, w)
    for number, one in enumerate(full.double()):
        expected = torch.cat([pooled(one, WHOLE, part) for part in ((1, 1), grid)]).softmax(1)
        assert_close(found.image.dense(7)[number], expected[0].float(), atol=1e-5, rtol=0)
        assert_close(found.tokens.dense(7)[number], expected[1:].float(), atol=1e-5, rtol=0)


def test_a_view_of_the_whole_image_has_the_store_s_labels() -> None:
    cells, grid = (5, 4), (3, 3)
    logits = 4 * torch.randn(1, 20, 12)
    scores, classes = (part[0].T.unflatten(1, cells) for part in best_scores(logits, 5, "rest"))
    stored = label_view(LabelMap(scores.numpy().astype("f2"), classes.numpy()), Geometry((64, 64)), grid, 12)
    found = online_labels(logits, cells, grid, 5)
    expected = dense(stored, 12)
    assert_close(torch.cat([found.image.dense(12)[:, None], found.tokens.dense(12)], 1)[0], expected, atol=1e-6, rtol=0)


def test_all_classes_give_the_annotator_s_own_answer() -> None:
    """Where each place is a token, and all classes are kept."""
    logits = torch.randn(2, 6, 4)
    found = online_labels(logits, (2, 3), (2, 3), top=1000)
    assert_close(found.tokens.dense(4), logits.softmax(2), atol=1e-3, rtol=0)


def test_of_several_labels_they_are_the_annotator_s_probabilities_of_the_best() -> None:
    logits = torch.randn(2, 6, 5)
    found = online_labels(logits, (2, 3), (2, 3), top=2, scores="sigmoid").tokens.dense(5)
    expected = torch.zeros(2, 6, 5)
    for image, places in enumerate(logits.tolist()):
        for place, own in enumerate(places):
            for column in sorted(range(5), key=lambda column: -own[column])[:2]:
                expected[image, place, column] = 1 / (1 + math.exp(-own[column]))
    assert_close(found, expected.half().float())


@pytest.mark.parametrize("classes", [5, 3000])
def test_the_host_does_not_wait(classes: int) -> None:
    with pretending() as log:
        logits = torch.randn(2, 6, classes).to(DEVICE)
        for _ in range(2):
            log.clear()
            online_labels(logits, (2, 3), (4, 4), 5)
    assert not log.waits
    assert not log.meetings
