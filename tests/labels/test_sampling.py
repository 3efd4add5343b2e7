"""The labels of a view are those that RoIAlign gives on the full score map, those of the official program, and those
of what the view shows."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close
from torchvision.ops import roi_align

from helpers import GOLDEN, golden
from labelflow.data.geometry import Geometry, Matrix, rotation_step
from labelflow.labels.sampling import ViewedMap, cell_weights, label_view, sample_counts, viewed_map
from labelflow.labels.store import LabelMap
from labelflow.sparse import Sparse, TokenLabels
from pretend import DEVICE, pretending

Box = tuple[float, float, float, float]  # top, left, height, width
WHOLE: Box = (0.0, 0.0, 1.0, 1.0)


def random_map(cells: tuple[int, int], k: int, classes: int, seed: int = 0) -> LabelMap:
    """Each cell has its own classes, every class at most once."""
    chance = np.random.default_rng(seed)
    ids = np.stack([chance.permutation(classes)[:k] for _ in range(math.prod(cells))], 1).reshape(k, *cells)
    return LabelMap(chance.normal(2, 4, (k, *cells)).astype(np.float16), ids.astype(np.uint16))


def dense(labels: TokenLabels, classes: int) -> Tensor:
    """(1 + N, C): of the view, and of its tokens."""
    return torch.cat([labels.image.dense(classes)[:, None], labels.tokens.dense(classes)], 1)[0]


def pooled(maps: Tensor, box: Box, grid: tuple[int, int], mirrored: bool = False) -> Tensor:
    """RoIAlign of maps (C, h, w) at each token: (N, C). A mirrored view is a view of the mirrored image."""
    top, left, height, width = box
    h, w = maps.shape[1:]
    if mirrored:
        maps, left = maps.flip(2), 1 - left - width
    corners = torch.tensor([[0, left * w, top * h, (left + width) * w, (top + height) * h]], dtype=maps.dtype)
    return roi_align(maps[None], corners, grid, sampling_ratio=-1, aligned=True)[0].flatten(1).T


def full_map(label_map: LabelMap, classes: int) -> Tensor:
    """(C, h, w), 0 for classes that a cell does not name."""
    full = torch.zeros(classes, *label_map.scores.shape[1:], dtype=torch.float64)
    ids = torch.from_numpy(label_map.classes.astype(np.int64))
    return full.scatter_(0, ids, torch.from_numpy(label_map.scores.astype(np.float64)))


def expected_labels(label_map: LabelMap, geometry: Geometry, grid: tuple[int, int], classes: int) -> Tensor:
    full = full_map(label_map, classes)
    parts = [pooled(full, geometry.box, part, geometry.mirrored) for part in ((1, 1), grid)]
    return torch.cat(parts).softmax(1).float()


grids = st.tuples(st.integers(1, 9), st.integers(1, 9))


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    height, width = draw(st.floats(0.02, 1)), draw(st.floats(0.02, 1))
    return draw(st.floats(0, 1)) * (1 - height), draw(st.floats(0, 1)) * (1 - width), height, width


def samples_are_certain(box: Box, grid: tuple[int, int], cells: tuple[int, int]) -> bool:
    """How many samples a token has is a whole number; next to a jump, rounding decides, but not for a whole side."""
    numbers = [(part, part * cell / side) for part, cell, side in zip(box[2:], cells, grid, strict=True)]
    return all(abs(number - round(number)) > 1e-4 or part == 1 for part, number in numbers)


def weights(view: Matrix, grid: tuple[int, int], cells: tuple[int, int]) -> Tensor:
    """Of the cells of a map that shows the whole image, (N, h·w), for one view."""
    counts = torch.from_numpy(sample_counts(view[None], cells, grid)[:, 2:])
    maps = torch.from_numpy(np.stack([view, view])).float()
    return cell_weights(maps[None], counts, counts[0].tolist(), grid, cells)[0]


@given(boxes(), grids, grids, st.booleans())
@example(WHOLE, (1, 1), (9, 9), False)
@example(WHOLE, (6, 3), (6, 3), True)
@example(WHOLE, (2, 9), (6, 3), False)
def test_weights_of_cells_are_roi_align(
    box: Box, grid: tuple[int, int], cells: tuple[int, int], mirrored: bool
) -> None:
    assume(samples_are_certain(box, grid, cells))
    each_cell = torch.eye(math.prod(cells), dtype=torch.float64).unflatten(1, cells)
    found = weights(Geometry((31, 17), box, mirrored).matrix, grid, cells)
    expected = pooled(each_cell, box, grid, mirrored)
    assert_close(found, expected.float(), atol=1e-5, rtol=0)
    assert_close(found.sum(1), torch.ones(math.prod(grid)))


@given(boxes(), grids, grids, st.booleans(), st.integers(1, 6))
def test_of_several_labels_they_are_roi_align_itself(
    box: Box, grid: tuple[int, int], cells: tuple[int, int], mirrored: bool, k: int
) -> None:
    """Probabilities, 0 for what no cell names; no softmax, and no sum of 1."""
    for part in ((1, 1), grid):
        assume(samples_are_certain(box, part, cells))
    scores, ids = random_map(cells, k, 11)
    label_map = LabelMap((1 / (1 + np.exp(-scores.astype(float)))).astype(np.float16), ids)
    found = dense(label_view(label_map, Geometry((31, 17), box, mirrored), grid, 11, scores="sigmoid"), 11)
    full = full_map(label_map, 11)
    expected = torch.cat([pooled(full, box, part, mirrored) for part in ((1, 1), grid)])
    assert_close(found, expected.float(), atol=1e-5, rtol=0)


@given(boxes(), grids, grids, st.booleans(), st.integers(1, 6), st.sampled_from([6, 11, 300]))
def test_labels_are_a_softmax_of_roi_align(
    box: Box, grid: tuple[int, int], cells: tuple[int, int], mirrored: bool, k: int, classes: int
) -> None:
    for part in ((1, 1), grid):
        assume(samples_are_certain(box, part, cells))
    geometry = Geometry((31, 17), box, mirrored)
    label_map = random_map(cells, k, classes)
    labels = label_view(label_map, geometry, grid, classes)
    found = dense(labels, classes)
    assert_close(found, expected_labels(label_map, geometry, grid, classes), atol=1e-5, rtol=0)
    assert_close(found.sum(1), torch.ones(len(found)))
    smooth = dense(labels.smoothed(0.1, classes), classes)
    assert_close(smooth, 0.9 * found + 0.1 / classes, atol=1e-6, rtol=0)


# ---- the official program


@pytest.mark.parametrize("smoothing", ["0", "0.1"])
@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize(("order", "compat"), [("xy", "none"), ("as_is", "official")])
def test_the_official_programs_labels(order: str, compat: Any, mirrored: bool, smoothing: str) -> None:
    """The golden box is one of the mirrored image; here the box comes first. Its smoothing is p·on + off."""
    expected = np.load(GOLDEN / "labelmap_18.npz")[f"{order}_hflip{int(mirrored)}_s{smoothing}"]
    on, off = 1 - float(smoothing) + float(smoothing) / 40, float(smoothing) / 40
    for sample, (top, left, height, width) in enumerate([(0.1, 0.25, 0.5, 0.7), (0.0, 0.4, 0.9, 0.35)]):
        scores, ids = golden.score_map(sample, 18, 18, 40)
        box = (top, 1 - left - width if mirrored else left, height, width)
        geometry = Geometry((500, 375), box, mirrored)
        labels = label_view(LabelMap(scores, ids.astype(int)), geometry, (14, 14), 40, compat=compat)
        found = dense(labels, 40) * on + off
        assert_close(found, torch.from_numpy(expected[sample].T[1:]), atol=1e-5, rtol=0)


def test_official_labels_take_no_notice_of_what_was_seen() -> None:
    label_map, geometry = random_map((6, 6), 2, 9), Geometry((300, 200), (0.1, 0.3, 0.4, 0.5))
    one, other = (
        dense(label_view(label_map, geometry, (4, 4), 9, seen, "official"), 9) for seen in ("whole", "center(0.5)")
    )
    assert torch.equal(one, other)


# ---- what the annotator saw


@given(boxes(), st.floats(0.3, 1), st.sampled_from([(300, 200), (120, 333), (64, 64)]), st.booleans())
def test_a_map_of_the_centre_labels_the_centre(inner: Box, part: float, size: tuple[int, int], mirrored: bool) -> None:
    """A view within the centre crop is labelled as if the crop were the image."""
    assume(samples_are_certain(inner, (3, 2), (5, 7)) and samples_are_certain(inner, (1, 1), (5, 7)))
    side = part * min(size)
    width, height = side / size[0], side / size[1]
    top, left = (1 - height) / 2, (1 - width) / 2
    box = (top + inner[0] * height, left + inner[1] * width, inner[2] * height, inner[3] * width)
    label_map = random_map((5, 7), 3, 11)
    found = label_view(label_map, Geometry(size, box, mirrored), (3, 2), 11, f"center({part})")
    cut_out = label_view(label_map, Geometry((64, 64), inner, mirrored), (3, 2), 11)
    assert_close(dense(found, 11), dense(cut_out, 11), atol=1e-4, rtol=0)


@pytest.mark.parametrize("wide", [True, False])
def test_beside_the_centre_its_nearest_cells_count(wide: bool) -> None:
    """center(0.5) of an image of 3:2 shows its middle third by its middle half."""
    label_map = LabelMap(np.full((1, 2, 2), 3, np.float16), np.array([[[0, 1], [2, 3]]]))
    geometry = Geometry((300, 200) if wide else (200, 300))
    tokens = dense(label_view(label_map, geometry, (8, 8), 5, "center(0.5)"), 5)[1:]
    corners = tokens.unflatten(0, (8, 8))[[0, 0, 7, 7], [0, 7, 0, 7]]
    assert_close(corners, (3 * torch.eye(5)[:4]).softmax(1))


# ---- what the view shows


def test_what_lies_outside_says_nothing() -> None:
    """A view moved half a frame to the side: half of it shows nothing."""
    geometry = Geometry((40, 30)).move(np.array([[1, 0, 0.5], [0, 1, 0], [0, 0, 1]]))
    label_map = random_map((8, 8), 3, 10)
    found = dense(label_view(label_map, geometry, (4, 4), 10), 10)[1:].unflatten(0, (4, 4))
    assert_close(found[:, 2:], torch.full((4, 2, 10), 0.1))
    half = Geometry((40, 30), (0, 0.5, 1, 0.5))
    assert_close(found[:, :2], dense(label_view(label_map, half, (4, 2), 10), 10)[1:].unflatten(0, (4, 2)))
    assert_close(weights(geometry.matrix, (1, 1), (8, 8)).sum(), torch.tensor(0.5))


@given(st.floats(-180, 180), boxes())
def test_tokens_outside_of_a_turned_view_are_uniform(degrees: float, box: Box) -> None:
    """Whatever the box shows: pixels outside of it are gone, though the image goes on there."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    turn = np.array([[cos, -sin, 0.5 - 0.5 * cos + 0.5 * sin], [sin, cos, 0.5 - 0.5 * sin - 0.5 * cos], [0, 0, 1]])
    found = dense(label_view(random_map((9, 9), 5, 20), Geometry((90, 90), box).move(turn), (8, 8), 20), 20)
    y, x = (np.indices((64, 64)) + 0.5) / 64  # 8×8 points in each token
    u, v, _ = turn @ np.stack([x.ravel(), y.ravel(), np.ones(64 * 64)])
    inside = ((u > 0) & (u < 1) & (v > 0) & (v < 1)).reshape(8, 8, 8, 8).transpose(0, 2, 1, 3).reshape(64, 64)
    outside = torch.from_numpy(~inside.any(1))
    assert_close(found[1:][outside], torch.full((int(outside.sum()), 20), 0.05))
    assert (found[1:][torch.from_numpy(inside.all(1))].amax(1) > 0.06).all()


def test_a_view_of_nothing_is_uniform() -> None:
    away = Geometry((40, 30)).move(np.array([[1, 0, 2.0], [0, 1, 0], [0, 0, 1]]))
    found = dense(label_view(random_map((4, 4), 2, 8), away, (3, 3), 8), 8)
    assert_close(found, torch.full((10, 8), 0.125))


# ---- maps of all kinds


@pytest.mark.parametrize("top", [30.0, 200.0, 65504.0, -30.0, -65504.0])
def test_large_scores_do_not_overflow(top: float) -> None:
    scores = np.array([top, 0.5 * top, 1.0], np.float16).reshape(3, 1, 1).repeat(4, 2)
    label_map = LabelMap(scores, np.broadcast_to(np.array([4, 1, 2]).reshape(3, 1, 1), scores.shape))
    geometry = Geometry((10, 10))
    found = dense(label_view(label_map, geometry, (1, 2), 7), 7)
    assert_close(found, expected_labels(label_map, geometry, (1, 2), 7), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("k", "classes"), [(1, 1), (3, 3), (1, 3)])
def test_few_classes(k: int, classes: int) -> None:
    label_map, geometry = random_map((3, 4), k, classes), Geometry((10, 10), (0.1, 0.2, 0.5, 0.6))
    found = dense(label_view(label_map, geometry, (2, 2), classes), classes)
    assert_close(found, expected_labels(label_map, geometry, (2, 2), classes), atol=1e-5, rtol=0)
    if classes == 1:
        assert torch.equal(found, torch.ones(5, 1))


def test_a_map_of_the_same_classes_everywhere_names_them_once() -> None:
    chance = np.random.default_rng(0)
    ids = np.broadcast_to(np.array([7, 3]).reshape(2, 1, 1), (2, 6, 6))
    label_map = LabelMap(chance.normal(0, 3, (2, 6, 6)).astype(np.float16), ids)
    geometry = Geometry((10, 10))
    labels = label_view(label_map, geometry, (3, 3), 9)
    assert labels.image.classes.tolist() == [[3, 7]]
    assert labels.above.shape == (1, 9, 2)
    assert_close(dense(labels, 9), expected_labels(label_map, geometry, (3, 3), 9), atol=1e-5, rtol=0)


@given(st.lists(st.tuples(boxes(), st.booleans(), st.lists(st.floats(-40, 40), max_size=2)), min_size=1, max_size=5))
def test_a_batch_is_its_views(drawn: list[tuple[Box, bool, list[float]]]) -> None:
    """Whatever else is in the batch: maps with more classes, views with more samples or moves."""
    views, alone = [], []
    for number, (box, mirrored, turns) in enumerate(drawn):
        geometry = Geometry((50, 40), box, mirrored)
        for degrees in turns:
            geometry = geometry.move(rotation_step(degrees, (64, 64)))
        label_map = random_map((6, 7), 1 + number % 3, 30, seed=number)
        padded = LabelMap(*(np.concatenate([part, part[:1].repeat(3 - len(part), 0)]) for part in label_map))
        views.append(viewed_map(padded, geometry, (5, 4), 30))
        alone.append(dense(label_view(padded, geometry, (5, 4), 30), 30))
    together = ViewedMap.stack(views).to(torch.device("cpu"))
    for number, expected in enumerate(alone):
        here = slice(number, number + 1)
        one = TokenLabels(Sparse(*(part[here] for part in together.image)), *(part[here] for part in together[1:]))
        assert_close(dense(one, 30), expected, atol=1e-6, rtol=0)


def test_the_host_waits_for_nothing() -> None:
    geometry = Geometry((50, 40), (0.1, 0.2, 0.5, 0.4))
    batch = ViewedMap.stack([viewed_map(random_map((6, 6), 3, 30, seed), geometry, (5, 4), 30) for seed in range(4)])
    with pretending() as log:
        labels = batch.to(torch.device(DEVICE))
        assert not log.waits
        assert not log.meetings
        found = labels.above.cpu()
    assert_close(found, batch.to(torch.device("cpu")).above, atol=1e-5, rtol=0)


def test_many_classes() -> None:
    """More than a short integer holds."""
    label_map = LabelMap(np.full((1, 2, 2), 9, np.float16), np.full((1, 2, 2), 40_000, np.uint16))
    labels = label_view(label_map, Geometry((10, 10)), (2, 2), 50_000)
    assert labels.image.classes.tolist() == [[40_000]]
    assert_close(labels.above + labels.rest.unsqueeze(2), torch.full((1, 4, 1), math.exp(9) / (math.exp(9) + 49_999)))
