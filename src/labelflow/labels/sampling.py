"""From a label map of an image to the labels of a view's tokens.

Scores are averaged over each token's place in the map (RoIAlign, as in Token Labeling's Section 4.1, through an affine
map), classes that the map doesn't name having the score 0; a softmax over all classes makes them a label.

Shapes: N tokens on a grid (rows, columns), h×w cells of a map, k classes of a cell, V classes of a view.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch

from labelflow.data import Source
from labelflow.data.geometry import Geometry, Matrix
from labelflow.labels.keys import SourceKeys
from labelflow.labels.manifest import center_part
from labelflow.labels.store import LabelMap, Store
from labelflow.sparse import Sparse, TokenLabels

Array = np.ndarray[Any, np.dtype[Any]]
Compat = Literal["none", "official"]


class StoreLabels:
    """The labels of views, from a store: `labels(key, geometry) -> TokenLabels` of one sample, without B.

    Every file of the store is checked here, once; data workers need not do it again.

    compat: "official" repeats what the public code did to crops: boxes transposed, maps taken for the whole image.
    Moves within the frame (RandAugment's) are labelflow's own in either case.
    """

    def __init__(self, store: Store, grid: tuple[int, int], compat: Compat = "none") -> None:
        self.store, self.grid, self.compat = store, grid, compat
        store.check()

    def __call__(self, key: str, geometry: Geometry) -> TokenLabels:
        manifest = self.store.manifest
        return label_view(self.store[key], geometry, self.grid, len(manifest.classes), manifest.seen, self.compat)


def label_view(
    label_map: LabelMap,
    geometry: Geometry,
    grid: tuple[int, int],
    num_classes: int,
    seen: str = "whole",
    compat: Compat = "none",
) -> TokenLabels:
    """The label of a view and those of its tokens. `seen`: what of the image the map shows (`Manifest.seen`)."""
    cells = label_map.scores.shape[1:]
    window = seen_window(seen, geometry.size) if compat == "none" else np.eye(3)
    view = geometry.matrix if compat == "none" else _official_matrix(geometry, cells)
    straight = not any(frame[0, 1] or frame[1, 0] for frame in (view, *geometry.frames))
    score = _straight_scores if straight else _slanted_scores
    return _softmax(*score(label_map, view, window, geometry.frames, grid, num_classes), num_classes)


def _straight_scores(
    label_map: LabelMap,
    view: Matrix,
    window: Matrix,
    frames: Sequence[Matrix],
    grid: tuple[int, int],
    num_classes: int,
) -> tuple[Array, Array]:
    """The classes of a view (V,), and the score of each for the whole view and for each token, (1 + N, V). Where axes
    stay axes, rows and columns of cells can be averaged one after the other."""
    h, w = label_map.scores.shape[1:]
    frame_x, frame_y = ([frame[axis] for frame in frames] for axis in (0, 1))
    down, top, bottom = axis_weights(view[1], window[1], 1, grid[0], h, frame_y)
    across, left, right = axis_weights(view[0], window[0], 0, grid[1], w, frame_x)
    seen = LabelMap(*(part[:, top:bottom, left:right] for part in label_map))
    classes, full = _full(seen, num_classes)  # (r·c, V)
    rows = _product(down, full.reshape(bottom - top, -1)).reshape(1 + grid[0], right - left, -1)  # (1 + rows, c, V)
    whole = _product(across[:1], rows[0])  # (1, V)
    tokens = _product(across[1:], rows[1:])  # (rows, columns, V)
    return classes, np.concatenate([whole, tokens.reshape(-1, len(classes))])


def _product(left: Array, right: Array) -> Array:
    """By torch: of its threads a worker has one, while numpy's would be as many as there are cores, in each worker."""
    return (torch.from_numpy(left) @ torch.from_numpy(right)).numpy()


def axis_weights(
    view: Array, window: Array, axis: int, count: int, cells: int, frames: Sequence[Array] = ()
) -> tuple[Array, int, int]:
    """How much each of a line of cells counts for the whole view and for each of a line of tokens, as RoIAlign takes
    them: (1 + tokens, cells), from the first to behind the last cell that counts; and these two.

    view, window, frames: the rows of the matrices that tell of this axis.
    """
    length = abs(cells * window[axis] * view[axis])
    per_view, per_token = (max(1, math.ceil(length / parts - 1e-6)) for parts in (1, count))
    sample, each, starts = _samples(per_view, count, per_token)
    place = view[axis] * sample + view[2]
    inside = np.abs(place - 0.5) < 0.5 + 1e-9
    for frame in frames:
        inside &= np.abs(frame[axis] * sample + frame[2] - 0.5) < 0.5 + 1e-9
    at = np.minimum(np.maximum(cells * (window[axis] * place + window[2]) - 0.5, 0), cells - 1)
    low = at.astype(int)
    part = (at - low) * inside
    weights = np.zeros((len(sample), cells + 1), np.float32)
    weights[each, low] = inside - part
    weights[each, low + 1] = part  # 0 at the last cell
    weights = np.add.reduceat(weights, starts, axis=0)
    weights[0] /= per_view
    weights[1:] /= per_token
    used = low[inside]
    first, last = (int(used.min()), int(min(used.max() + 2, cells))) if len(used) else (0, 1)
    return weights[:, first:last], first, last


@lru_cache(maxsize=1024)
def _samples(per_view: int, count: int, per_token: int) -> tuple[Array, Array, Array]:
    """Where along a view samples are taken: those of the whole, then those of each token; their numbers; and the first
    one of the whole and of each token."""
    places = [(np.arange(number) + 0.5) / number for number in (per_view, count * per_token)]
    sample = np.concatenate(places)
    return sample, np.arange(len(sample)), np.concatenate([[0], np.arange(per_view, len(sample), per_token)])


def _slanted_scores(
    label_map: LabelMap,
    view: Matrix,
    window: Matrix,
    frames: Sequence[Matrix],
    grid: tuple[int, int],
    num_classes: int,
) -> tuple[Array, Array]:
    """The same for a view that is rotated or sheared."""
    cells = label_map.scores.shape[1:]
    parts = [cell_weights(view, part, cells, window, frames) for part in ((1, 1), grid)]
    weights = np.concatenate(parts)  # (1 + N, h·w)
    used = np.flatnonzero(weights.any(0))
    k = len(label_map.scores)
    classes, full = _full(LabelMap(*(part.reshape(k, -1)[:, used] for part in label_map)), num_classes)
    return classes, _product(weights[:, used], full)


def _full(label_map: LabelMap, num_classes: int) -> tuple[Array, Array]:
    """The classes of a map (V,), at least one, and the score of each in each cell (cells, V), 0 where it has none."""
    k = len(label_map.classes)
    ids = label_map.classes.reshape(k, -1)
    place = np.zeros(num_classes, np.int64)
    place[ids] = 1
    place[0] |= not ids.size
    classes = np.flatnonzero(place)
    place[classes] = np.arange(len(classes))
    full = np.zeros((ids.shape[1], len(classes)), np.float32)
    full[np.arange(ids.shape[1]), place[ids]] = label_map.scores.reshape(k, -1)
    return classes, full


def cell_weights(
    view: Matrix, grid: tuple[int, int], cells: tuple[int, ...], window: Matrix, frames: Sequence[Matrix] = ()
) -> Array:
    """How much each cell of a map counts for each token: (N, h·w).

    view: from the view to the image; window: from the image to the map; all in fractions. Each token takes the mean of
    bilinear samples, about one a cell in each direction, as RoIAlign does. What lies outside the image, or outside one
    of the frames that the view was moved in, shows nothing and counts nothing.
    """
    rows, columns = grid
    h, w = cells
    to_cells = np.diag([w, h, 1.0]) @ window @ view
    per_row, per_column = (
        max(1, math.ceil(math.hypot(*to_cells[:2, axis]) / count - 1e-6)) for axis, count in ((1, rows), (0, columns))
    )
    y, x = np.meshgrid(
        (np.arange(rows * per_row) + 0.5) / (rows * per_row),
        (np.arange(columns * per_column) + 0.5) / (columns * per_column),
        indexing="ij",
    )
    token = (np.arange(rows * per_row) // per_row)[:, None] * columns + np.arange(columns * per_column) // per_column
    points = np.stack([x.ravel(), y.ravel(), np.ones(x.size)])  # (3, samples)
    inside = np.all([np.abs((frame @ points)[:2] - 0.5).max(0) < 0.5 + 1e-9 for frame in (view, *frames)], axis=0)
    u, v = ((to_cells @ points)[:2] - 0.5).clip(0, [[w - 1], [h - 1]])
    left, top = np.floor(u).astype(int), np.floor(v).astype(int)
    right, bottom = np.minimum(left + 1, w - 1), np.minimum(top + 1, h - 1)
    du, dv = u - left, v - top
    corners = [
        (top, left, (1 - dv) * (1 - du)),
        (top, right, (1 - dv) * du),
        (bottom, left, dv * (1 - du)),
        (bottom, right, dv * du),
    ]
    place = np.concatenate([token.ravel() * h * w + row * w + column for row, column, _ in corners])
    weight = np.concatenate([part * inside for _, _, part in corners])
    counted = np.bincount(place, weight, minlength=rows * columns * h * w) / (per_row * per_column)
    return counted.reshape(rows * columns, h * w).astype(np.float32)


def _softmax(classes: Array, scores: Array, num_classes: int) -> TokenLabels:
    """Over all classes, those without a score having 0. The first row is the view as a whole."""
    top = np.maximum(scores.max(1), 0)  # (1 + N,)
    nothing = np.exp(-top)
    found = np.flatnonzero(scores != 0)  # few of all: a token touches few cells
    row, place = np.divmod(found, len(classes))
    above = np.exp(scores.ravel()[found] - top[row]) - nothing[row]
    total = num_classes * nothing + np.bincount(row, above, minlength=len(scores))
    above = (above / total[row]).astype(np.float32)
    rest = (nothing / total).astype(np.float32)

    first = int(np.searchsorted(row, 1))  # the first row is the view, whose classes are all there
    whole = np.zeros(len(classes), np.float32)
    whole[place[:first]] = above[:first]
    token, place, above = row[first:] - 1, place[first:], above[first:]
    counts = np.bincount(token, minlength=len(scores) - 1)
    column = np.arange(len(token)) - (np.cumsum(counts) - counts)[token]
    places = np.zeros((len(counts), max(1, counts.max())), np.int16 if len(classes) <= 2**15 else np.int32)
    values = np.zeros(places.shape, np.float32)
    places[token, column] = place
    values[token, column] = above
    small = classes.astype(np.int16 if num_classes <= 2**15 else np.int32)
    image = Sparse(torch.from_numpy(small), torch.from_numpy(whole), torch.tensor(rest[0]))
    return TokenLabels(image, *(torch.from_numpy(part) for part in (places, values, rest[1:])))


def seen_window(seen: str, size: tuple[int, int]) -> Matrix:
    """From an image of that width and height to its map: "whole", or "center(0.9)", of a part of the shorter side."""
    if seen == "whole":
        return np.eye(3)
    width, height = (center_part(seen) * min(size) / side for side in size)
    return np.array([[1 / width, 0, 0.5 - 0.5 / width], [0, 1 / height, 0.5 - 0.5 / height], [0, 0, 1]])


def _official_matrix(geometry: Geometry, cells: tuple[int, ...]) -> Matrix:
    """The public code's reading of a crop: on the mirrored image, x and y exchanged, at least a cell wide and high."""
    top, left, height, width = geometry.box
    left = 1 - left - width if geometry.mirrored else left
    swapped = Geometry(geometry.size, (left, top, max(width, 1 / cells[0]), max(height, 1 / cells[1])))
    mirror = np.array([[-1.0, 0, 1], [0, 1, 0], [0, 0, 1]]) if geometry.mirrored else np.eye(3)
    return mirror @ swapped.matrix @ geometry.moved


def check_keys(store: Store, source: Source) -> None:
    """Every sample has its labels."""
    missing = store.lacks(SourceKeys(source))
    if missing:
        raise ValueError(
            f"{store.folder} has no labels for {len(missing)} of the {len(source)} training images, such as "
            f"{missing[0]!r}; annotate this data (its keys are like {store.keys()[0]!r})"
        )
