"""From label maps of images to the labels of views' tokens.

Scores are averaged over each token's place in the map (RoIAlign, as in Token Labeling's Section 4.1, through an affine
map), classes that the map doesn't name having the score 0; a softmax over all classes makes them a label. Where an
image may show several classes, scores are probabilities, and their averages are the label. Data workers only read the
maps: labels are made of them batch by batch, on the device that has the images.

Shapes: B batch, N tokens on a grid (rows, columns), h×w cells of a map, k classes of a cell, C classes, V classes of a
map, F frames, S samples of a token along an axis.
"""

import math
from collections.abc import Sequence
from copy import copy
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from labelflow.data import Source
from labelflow.data.geometry import IDENTITY, MIRROR, Geometry, Matrix
from labelflow.flow import product
from labelflow.labels.keys import SourceKeys
from labelflow.labels.manifest import center_part
from labelflow.labels.store import LabelMap, Store
from labelflow.sparse import Sparse, TokenLabels

Array = np.ndarray[Any, np.dtype[Any]]
Compat = Literal["none", "official"]
SLACK = 1e-6  # what rounding may add to a place within a frame
CPU = torch.device("cpu")


class StoreLabels:
    """The labels of views, from a store: `labels(key, geometry) -> ViewedMap` of one sample.

    Every file of the store is checked here, once; data workers need not do it again.

    compat: "official" repeats what the public code did to crops: boxes transposed, maps taken for the whole image.
    Moves within the frame (RandAugment's) are labelflow's own in either case.
    """

    def __init__(self, store: Store, grid: tuple[int, int], compat: Compat = "none") -> None:
        self.store, self.grid, self.compat = store, grid, compat
        store.check()

    def on(self, grid: tuple[int, int]) -> "StoreLabels":
        """The same for another grid of tokens, without checking it all again."""
        other = copy(self)
        other.grid = grid
        return other

    def __call__(self, key: str, geometry: Geometry) -> "ViewedMap":
        manifest = self.store.manifest
        how = (self.grid, len(manifest.classes), manifest.seen, self.compat, manifest.scores)
        return viewed_map(self.store[key], geometry, *how)


class ViewedMap(NamedTuple):
    """A label map, and how its image is seen."""

    label_map: LabelMap
    view: Matrix  # from the view to the image
    bordered: Matrix  # from the view to the image with what is mirrored around it, where the nearest cell counts
    window: Matrix  # from the image to the map
    frames: tuple[Matrix, ...]  # from the view to the frame before each move
    grid: tuple[int, int]
    num_classes: int
    scores: str  # `Manifest.scores`

    @staticmethod
    def stack(views: "Sequence[ViewedMap]") -> "ViewedMaps":
        scores, classes = (np.stack(part) for part in zip(*(view.label_map for view in views), strict=True))
        most = max(len(view.frames) for view in views)
        within = [(view.bordered, *view.frames, *[view.bordered] * (most - len(view.frames))) for view in views]
        to_map = np.stack([view.window for view in views]) @ np.stack([view.view for view in views])
        counts = sample_counts(to_map, scores.shape[2:], views[0].grid)
        parts = (
            np.concatenate([to_map[:, None], within], 1).astype(np.float32),
            counts,
            classes.astype(np.int32 if views[0].num_classes > 2**15 else np.int16, copy=False),
            scores,
        )
        return ViewedMaps(
            torch.from_numpy(np.concatenate([part.ravel().view(np.uint8) for part in parts])),
            [(torch.from_numpy(part[:0]).dtype, part.shape) for part in parts],
            counts.max(0).tolist(),
            max(_different(ids.ravel()) for ids in classes),
            views[0].grid,
            views[0].num_classes,
            views[0].scores,
        )


class ViewedMaps(NamedTuple):
    """Those of a batch, as workers send them: in one piece, since each tensor costs them time."""

    content: Tensor  # (bytes,)
    parts: Sequence[tuple[torch.dtype, tuple[int, ...]]]  # of it: types and shapes, `split` says which
    most: Sequence[int]  # the largest counts
    vocabulary: int  # the largest number of classes that a map names
    grid: tuple[int, int]
    num_classes: int
    scores: str

    def to(self, device: torch.device) -> TokenLabels:
        maps, counts, classes, scores = self.split(self.content.to(device, non_blocking=True))
        weights = view_weights(maps, counts, self.most, self.grid, (scores.shape[2], scores.shape[3]))
        return view_labels(weights, scores.float(), classes.long(), self.vocabulary, self.num_classes, self.scores)

    def split(self, content: Tensor) -> list[Tensor]:
        """maps (B, 1 + F, 3, 3): from the view to the map, to the image, and to the frame before each move;
        counts (B, 4): samples of the view, down and across, and of each token;
        classes and scores (B, k, h, w)."""
        sizes = [kind.itemsize * math.prod(shape) for kind, shape in self.parts]
        pieces = zip(content.split(sizes), self.parts, strict=True)
        return [piece.view(kind).view(*shape) for piece, (kind, shape) in pieces]


def viewed_map(
    label_map: LabelMap,
    geometry: Geometry,
    grid: tuple[int, int],
    num_classes: int,
    seen: str = "whole",
    compat: Compat = "none",
    scores: str = "rest",
) -> ViewedMap:
    """`seen`: what of the image the map shows, and `scores`: what it holds, as `Manifest` has them."""
    if compat == "official":
        view, window = _official_matrix(geometry, label_map.scores.shape[1:]), IDENTITY
        bordered = view
    else:
        view, window, bordered = geometry.matrix, seen_window(seen, geometry.size), geometry.bordered
    return ViewedMap(label_map, view, bordered, window, geometry.frames, grid, num_classes, scores)


def label_view(
    label_map: LabelMap,
    geometry: Geometry,
    grid: tuple[int, int],
    num_classes: int,
    seen: str = "whole",
    compat: Compat = "none",
    scores: str = "rest",
) -> TokenLabels:
    """The label of one view and those of its tokens, a batch of one."""
    return ViewedMap.stack([viewed_map(label_map, geometry, grid, num_classes, seen, compat, scores)]).to(CPU)


@cache
def whole_view_weights(grid: tuple[int, int], cells: tuple[int, int], device: torch.device) -> Tensor:
    """How much each cell counts where the map is that of the view itself: (1, 1 + N, h·w), made once for a device."""
    counts = sample_counts(IDENTITY[None], cells, grid)
    maps = torch.from_numpy(IDENTITY).float().expand(1, 2, 3, 3)
    return view_weights(maps, torch.from_numpy(counts), counts[0].tolist(), grid, cells).to(device)


def view_labels(
    weights: Tensor, scores: Tensor, classes: Tensor, vocabulary: int, num_classes: int, kind: str
) -> TokenLabels:
    """The labels of views and their tokens, from scores and classes (B, k, h, w) and what each cell counts for them.

    kind: what scores are, `Manifest.scores`.
    """
    names, full = over_vocabulary(scores, classes, vocabulary, num_classes)
    averages = product(weights, full)  # (B, 1 + N, V), first those of the view as a whole
    if kind == "sigmoid":
        rest = torch.zeros_like(averages[:, :, 0])  # classes that are not named are not there
        return TokenLabels(Sparse(names, averages[:, 0], rest[:, 0]), averages[:, 1:], rest[:, 1:])
    return softmax(names, averages, num_classes)


def view_weights(
    maps: Tensor, counts: Tensor, most: Sequence[int], grid: tuple[int, int], cells: tuple[int, int]
) -> Tensor:
    """How much each cell counts for the view as a whole, and for each of its tokens: (B, 1 + N, h·w)."""
    whole = cell_weights(maps, counts[:, :2], most[:2], (1, 1), cells)
    return torch.cat([whole, cell_weights(maps, counts[:, 2:], most[2:], grid, cells)], 1)


def sample_counts(to_map: Array, cells: Sequence[int], grid: tuple[int, int]) -> Array:
    """About one sample a cell in each direction, as RoIAlign has them: (B, 4), of the view, down and across, and of
    each token."""
    steps = np.hypot(to_map[:, 0] * cells[1], to_map[:, 1] * cells[0])[:, [1, 0]]  # (B, 2): cells along y and x
    parts = np.array([1, 1, *grid])
    return np.maximum(1, np.ceil(np.tile(steps, 2) / parts - 1e-6)).astype(np.int32)


def cell_weights(
    maps: Tensor, counts: Tensor, most: Sequence[int], grid: tuple[int, int], cells: tuple[int, int]
) -> Tensor:
    """How much each cell of a map counts for each token: (B, N, h·w).

    Each token takes the mean of bilinear samples, counts (B, 2) of them down and across, `most` at most. What lies
    outside the image, or outside one of the frames that the view was moved in, shows nothing and counts nothing.
    """
    (rows, columns), (h, w) = grid, cells
    down, across = counts[:, 0, None, None], counts[:, 1, None, None]
    y, of_row = _along(rows, down, most[0])  # (B, rows, S) each
    x, of_column = _along(columns, across, most[1])
    affine = maps[:, :, :2, :, None, None, None, None].unbind(3)
    places = affine[0] * x[:, None, None, None, :, None, :] + affine[1] * y[:, None, None, :, None, :, None] + affine[2]
    u, v = places[:, 0].unbind(1)  # (B, rows, columns, S, S) each, in the map
    inside = ((places[:, 1:] - 0.5).abs() < 0.5 + SLACK).all(2).all(1)
    counted = inside & of_row[:, :, None, :, None] & of_column[:, None, :, None, :]

    u, v = (w * u - 0.5).clamp(0, w - 1), (h * v - 0.5).clamp(0, h - 1)
    left, top = u.floor().clamp(max=max(w - 2, 0)), v.floor().clamp(max=max(h - 2, 0))
    right, bottom = u - left, v - top  # parts that count for the cells on the right and below
    first, next_column, next_row = (top * w + left).long(), int(w > 1), w * int(h > 1)
    cell = torch.stack([first, first + next_column, first + next_row, first + next_row + next_column], -1)
    share = torch.stack([(1 - bottom) * (1 - right), (1 - bottom) * right, bottom * (1 - right), bottom * right], -1)
    share = share * counted[..., None] / (down * across)[..., None, None, None]
    weights = torch.zeros(len(maps), rows * columns, h * w, device=maps.device)
    return weights.scatter_add_(2, cell.flatten(3).flatten(1, 2), share.flatten(3).flatten(1, 2))


def _along(parts: int, counts: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Where samples lie along an axis that is cut into parts, (B, parts, S), and which of them count, (B, 1, S)."""
    part = torch.arange(parts, device=counts.device)[:, None]
    number = torch.arange(most, device=counts.device)
    return (part + (number + 0.5) / counts) / parts, number < counts


def over_vocabulary(scores: Tensor, classes: Tensor, vocabulary: int, num_classes: int) -> tuple[Tensor, Tensor]:
    """The classes that each map names, (B, V), and the score of each in each cell, (B, h·w, V), 0 where it has none."""
    scores, classes = scores.flatten(2).transpose(1, 2), classes.flatten(2).transpose(1, 2)  # (B, h·w, k)
    batch = len(classes)
    named = torch.zeros(batch, num_classes, dtype=torch.bool, device=classes.device)
    named.scatter_(1, classes.flatten(1), torch.ones_like(named[:, :1]).expand(-1, classes[0].numel()))
    place = named.cumsum(1) - 1  # (B, C)
    every = torch.arange(num_classes, device=classes.device).expand(batch, -1)
    nowhere = torch.full_like(place, vocabulary)
    names = torch.zeros(batch, vocabulary + 1, dtype=torch.long, device=classes.device)
    names.scatter_(1, torch.where(named, place, nowhere), every)
    full = torch.zeros(batch, classes.shape[1], vocabulary, device=classes.device)
    full.scatter_(2, place.gather(1, classes.flatten(1)).view(classes.shape), scores)
    return names[:, :vocabulary], full


def softmax(names: Tensor, scores: Tensor, num_classes: int) -> TokenLabels:
    """Over all classes, those without a score having 0: scores (B, 1 + N, V), first those of the view as a whole."""
    top = scores.amax(2, keepdim=True).clamp(min=0)
    nothing = (-top).exp()
    above = (scores - top).exp() - nothing  # 0 for a score of 0
    total = above.sum(2, keepdim=True) + num_classes * nothing
    above, rest = above / total, (nothing / total).squeeze(2)
    return TokenLabels(Sparse(names, above[:, 0], rest[:, 0]), above[:, 1:], rest[:, 1:])


def _different(ids: Array) -> int:
    """How many different whole numbers."""
    return int(np.count_nonzero(np.bincount(ids)))


def seen_window(seen: str, size: tuple[int, int]) -> Matrix:
    """From an image of that width and height to its map: "whole", or "center(0.9)", of a part of the shorter side."""
    if seen == "whole":
        return IDENTITY
    width, height = (center_part(seen) * min(size) / side for side in size)
    return np.array([[1 / width, 0, 0.5 - 0.5 / width], [0, 1 / height, 0.5 - 0.5 / height], [0, 0, 1]])


def _official_matrix(geometry: Geometry, cells: tuple[int, ...]) -> Matrix:
    """The public code's reading of a crop: on the mirrored image, x and y exchanged, at least a cell wide and high."""
    top, left, height, width = geometry.box
    left = 1 - left - width if geometry.mirrored else left
    swapped = Geometry(geometry.size, (left, top, max(width, 1 / cells[0]), max(height, 1 / cells[1])))
    mirror = MIRROR if geometry.mirrored else IDENTITY
    return mirror @ swapped.matrix @ geometry.moved


def check_keys(store: Store, source: Source) -> None:
    """Every sample has its labels."""
    missing = store.lacks(SourceKeys(source))
    if missing:
        raise ValueError(
            f"{store.folder} has no labels for {len(missing)} of the {len(source)} training images, such as "
            f"{missing[0]!r}; annotate this data (its keys are like {store.keys()[0]!r})"
        )
