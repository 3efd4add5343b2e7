"""The sample world: a data set that ships as code, so that the first training run needs no download.

A scene shows an object of one of ten classes, told apart by shape and texture: colours are random and say nothing.
Clutter lies around it, and sometimes over it. What is visible of each object is known to the pixel, so the same scenes
serve classification, detection and segmentation.

A scene is a function of (seed, split, index) alone: the same in any order, in any worker and on any machine, for its
pixels are sums, products, roots and comparisons, which all round alike. Lengths are parts of the image's shorter side,
so that a scene looks the same at any size. In shapes, h×w is a window of H×W pixels that something is drawn in.
"""

import math
from collections.abc import Callable
from colorsys import hls_to_rgb
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy import ndarray
from numpy.random import Generator
from PIL import Image

from labelflow.data.images import Decode, to_rgb

SPLITS = ("train", "val", "test")
DIAMETER = 0.45, 0.75  # of an object, from and to; less if a scene shows several
VISIBLE = 0.5  # the part of each object that is not hidden, at least, or so: it is measured coarsely
SHADOW = 0.05  # the width of the soft shadow around everything

Field = Callable[[ndarray, ndarray], ndarray]  # from coordinates to signed distances, which are negative inside
Size = int | tuple[int, int]  # the side of a square image in pixels, or height and width
Look = tuple[Field, Field | None]  # shape and texture


def _bar(x: ndarray, y: ndarray) -> ndarray:
    return np.maximum(np.abs(x) - 0.95, np.abs(y) - 0.3)


def _star(x: ndarray, y: ndarray) -> ndarray:
    """The second largest distance to the sides of a pentagon: a star's points are outside of one side, not of two."""
    x = np.abs(x)
    side, low, across = 0.951 * x + 0.309 * y, -0.809 * y, 0.588 * x
    return np.maximum(np.minimum(side, np.maximum(y, low + across)), low - across) - 0.309


def _wave(x: ndarray) -> ndarray:
    """The distance to the nearest whole number: a wave from 0 to 0.5 and back."""
    return np.abs(x - np.rint(x))


def _checks(x: ndarray, y: ndarray) -> ndarray:
    return 4 * (_wave(x) - 0.25) * (_wave(y) - 0.25)


SHAPES: dict[str, Field] = {  # within a circle of radius 1
    "disc": lambda x, y: np.sqrt(x * x + y * y) - 0.9,
    "triangle": lambda x, y: np.maximum(0.866 * np.abs(x) - 0.5 * y, y) - 0.5,
    "square": lambda x, y: np.maximum(np.abs(x), np.abs(y)) - 0.7,
    "star": _star,
    "cross": lambda x, y: np.minimum(_bar(x, y), _bar(y, x)),
}
TEXTURES: dict[str, Field] = {  # of period 1; all cover three tenths, so that colour says nothing
    "striped": lambda x, y: _wave(y) - 0.15,
    "barred": lambda x, y: _wave(x) - 0.15,
    "dotted": lambda x, y: np.sqrt(_wave(x) ** 2 + _wave(y) ** 2) - 0.309,
    "netted": lambda x, y: np.minimum(_wave(x), _wave(y)) - 0.082,
    "zigzag": lambda x, y: 0.7 * (_wave(y + _wave(x)) - 0.15),
}
# Each texture comes with two shapes and each shape with two textures, so that either alone is right half of the time.
LOOKS = {
    f"{texture} {shape}": (SHAPES[shape], TEXTURES[texture])
    for number, texture in enumerate(TEXTURES)
    for shape in (list(SHAPES)[number], list(SHAPES)[(number + 1) % len(SHAPES)])
}
CLUTTER: list[Look] = [(shape, texture) for shape in (_bar, *SHAPES.values()) for texture in (None, None, _checks)]
CLASSES: tuple[str, ...] = tuple(LOOKS)
KEPT = 2**28  # bytes of images that a world keeps in each process: 21,845 at 64 pixels


@dataclass(frozen=True, eq=False)
class Scene:
    """An image, and what is true of it."""

    image: ndarray  # (H, W, 3) uint8
    objects: ndarray  # (count,) int64: the class of each object
    mask: ndarray  # (H, W) uint8: 0 background, 1 + i where object i is visible
    boxes: ndarray  # (count, 4) float32: left, top, right, bottom around what is visible, in pixels, half-open

    @property
    def label(self) -> int:
        """The class of the scene: that of its first object."""
        return int(self.objects[0])


def scene(seed: int, split: str, index: int, size: Size = 64, objects: int = 1, scale: float = 1.0) -> Scene:
    """Draw one scene.

    The class of the first object is index % 10, so that any ten scenes in a row are balanced: shuffle to train.
    Other objects are of any class. Later ones may hide parts of earlier ones. scale: of the objects' diameters.
    """
    height, width = _check(seed, split, size, objects, scale)
    if index < 0:
        raise ValueError(f"index must be at least 0, not {index}")
    rng = np.random.default_rng([seed, SPLITS.index(split), index])
    grid = _Grid(height, width)
    classes = [index % len(CLASSES), *(int(draw * len(CLASSES)) for draw in rng.random(objects - 1).tolist())]
    canvas = _background(rng, grid)  # below 1
    mask = np.zeros((height, width), np.uint8)
    for part in _parts(rng, grid, classes, scale):
        part.paint(canvas, mask, grid)
    image = np.empty((height, width, 3), np.uint8)
    y, x = rng.random(2).tolist()  # where a lamp is, and the light is 1; around it, it is less
    light = (1 - 0.3 * (grid.rows / grid.height - y) ** 2) * (1 - 0.3 * (grid.columns / grid.width - x) ** 2)
    np.multiply(canvas, light * 256, out=image.transpose(2, 0, 1), casting="unsafe")
    boxes = [_box(mask == number) for number in range(1, 1 + objects)]
    return Scene(image, np.array(classes, np.int64), mask, np.array(boxes, np.float32))


class World:
    """A data set of scenes: `world[17]` is all that is known of one, `world.load(17)` its image and class."""

    classes = CLASSES

    def __init__(
        self, split: str, length: int, size: Size = 64, seed: int = 0, objects: int = 1, scale: float = 1.0
    ) -> None:
        if not isinstance(length, int) or length < 1:
            raise ValueError(f"length, the number of scenes, must be a whole number, at least 1, not {length!r}")
        _check(seed, split, size, objects, scale)
        self.split, self.length, self.size, self.seed = split, length, size, seed
        self.objects, self.scale = objects, scale
        self._kept: dict[int, ndarray] = {}  # images that have been drawn

    def __len__(self) -> int:
        return self.length

    @property
    def labels(self) -> ndarray:
        """(N,): of the first object of each scene"""
        return np.arange(self.length) % len(CLASSES)

    def __getitem__(self, index: int) -> Scene:
        if not 0 <= index < self.length:
            raise IndexError(f"this world has the scenes 0 to {self.length - 1}, not {index}")
        return scene(self.seed, self.split, index, self.size, self.objects, self.scale)

    def load(self, index: int, decode: Decode = to_rgb) -> tuple[Any, int]:
        """An image and its class. An image is drawn once while there is room to keep it: drawing takes as long as a
        small model's forward pass."""
        image = self._kept.get(index)
        if image is None:
            image = self[index].image
            if len(self._kept) < KEPT // image.nbytes:
                self._kept[index] = image
        return decode(Image.fromarray(image)), index % len(CLASSES)

    def name(self, index: int) -> str:
        """What messages call a scene."""
        return f"world/{self.split}/{index}"

    def key(self, index: int) -> str:
        return f"{self.split} {self.seed}/{index}"


def _check(seed: int, split: str, size: Size, objects: int, scale: float) -> tuple[int, int]:
    """H, W"""
    height, width = size if isinstance(size, tuple) else (size, size)
    if not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed must be a whole number, at least 0, not {seed!r}")
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {split!r}")
    if not all(isinstance(side, int) and side >= 16 for side in (height, width)):
        raise ValueError(f"size, in pixels, must be a whole number, at least 16, not {size!r}")
    if objects not in (1, 2, 3, 4):
        raise ValueError(f"objects, how many a scene shows, must be 1 to 4, not {objects!r}")
    if not isinstance(scale, int | float) or not 0.25 <= scale <= 1.25:
        raise ValueError(f"scale, of the objects, must lie between 0.25 and 1.25, not {scale!r}")
    return height, width


class _Grid:
    """Where the pixels of an image are, in parts of its shorter side."""

    def __init__(self, height: int, width: int) -> None:
        self.pixel = 1 / min(height, width)
        self.height, self.width = height * self.pixel, width * self.pixel
        self.rows = (np.arange(height, dtype=np.float32)[:, None] + 0.5) * self.pixel  # (H, 1)
        self.columns = (np.arange(width, dtype=np.float32) + 0.5) * self.pixel  # (W,)


class _Part:
    """Something in a scene, turned and coloured at random. In the mask it is `number`: 0 if it is of no class."""

    def __init__(self, rng: Generator, look: Look, y: float, x: float, radius: float, number: int = 0) -> None:
        self.shape, self.texture, self.y, self.x, self.radius, self.number = *look, y, x, radius, number
        turn, grain, period, hue, other, bright, dim = rng.random(7).tolist()
        self.turn = (turn - 0.5) * (0.5 if number else 2 * math.pi)  # objects stand nearly upright
        self.grain, self.period = grain - 0.5, 0.1 + 0.03 * period  # the texture's turn and period
        tones = hls_to_rgb(hue, 0.72 + 0.18 * bright, 0.7), hls_to_rgb(other, 0.1 + 0.25 * dim, 0.6)
        self.paper, self.ink = np.array(tones if number else tones[::-1], np.float32)[..., None, None]  # (3, 1, 1)

    def outline(self, mask: ndarray, grid: _Grid) -> tuple[slice, slice, ndarray]:
        """Enter it into a mask, (H, W), in place. Its window's rows, columns and distances to its edge, (h, w)."""
        y, x, reach = self.y / grid.pixel, self.x / grid.pixel, (self.radius + SHADOW) / grid.pixel
        rows = slice(max(0, int(y - reach)), int(y + reach) + 1)
        columns = slice(max(0, int(x - reach)), int(x + reach) + 1)
        distance = self.shape(
            *_turned(grid.columns[columns] - self.x, grid.rows[rows] - self.y, self.turn, self.radius)
        )
        mask[rows, columns][distance < 0] = self.number
        return rows, columns, distance

    def paint(self, canvas: ndarray, mask: ndarray, grid: _Grid) -> None:
        """Put it and its shadow on a canvas, (3, H, W), and enter it into the mask, in place."""
        rows, columns, distance = self.outline(mask, grid)
        below, colour = canvas[:, rows, columns], self.paper
        if self.texture:
            turned = _turned(grid.columns[columns], grid.rows[rows], self.grain, self.period)
            colour = colour + _inside(self.texture(*turned), self.period / grid.pixel) * (self.ink - colour)
        below *= (0.65 + distance * (0.35 * self.radius / SHADOW)).clip(0.65, 1)
        below += _inside(distance, self.radius / grid.pixel) * (colour - below)


def _turned(x: ndarray, y: ndarray, turn: float, unit: float) -> tuple[ndarray, ndarray]:
    """Coordinates in a turned frame with another unit: (w,) and (h, 1) -> (h, w) each"""
    cos, sin = math.cos(turn) / unit, math.sin(turn) / unit
    return x * cos + y * sin, y * cos - x * sin


def _inside(distance: ndarray, unit: float) -> ndarray:
    """How much of each pixel is inside, from distances in a unit of that many pixels: a smooth edge."""
    return (0.5 - distance * unit).clip(0, 1)


def _parts(rng: Generator, grid: _Grid, classes: list[int], scale: float) -> list[_Part]:
    """Clutter, objects, and bars over some objects, which are drawn again until enough of each is visible."""
    clutter = [  # small and dark, and of no class, for it is plain or checked
        _Part(rng, CLUTTER[int(look * len(CLUTTER))], y * grid.height, x * grid.width, 0.05 + 0.08 * size)
        for y, x, size, look in rng.random((rng.integers(2, 5), 4)).tolist()
    ]
    low, high = (scale * diameter / 2 * len(classes) ** (-1 / 3) for diameter in DIAMETER)
    spread = 0.6 if len(classes) == 1 else 1.0  # one object is near the middle, as in most photographs
    while True:
        objects, bars = [], []
        for number, kind in enumerate(classes, start=1):
            size, down, right, hidden, lower, aside = rng.random(6).tolist()
            radius = low + size * (high - low)
            y = grid.height / 2 + spread * (down - 0.5) * (grid.height - 2 * radius)
            x = grid.width / 2 + spread * (right - 0.5) * (grid.width - 2 * radius)
            objects.append(_Part(rng, LOOKS[CLASSES[kind]], y, x, radius, number))
            if hidden < 0.35:
                y, x = y + (2 * lower - 1) * radius, x + (2 * aside - 1) * radius
                bars.append(_Part(rng, (_bar, None), y, x, 0.8 * radius))
        if len(objects + bars) == 1 or _least_visible(objects + bars, grid) > VISIBLE:
            return clutter + objects + bars


def _least_visible(parts: list[_Part], grid: _Grid) -> float:
    """The visible part of the object that is hidden most, measured coarsely, so that it is the same at any size."""
    coarse = _Grid(round(32 * grid.height), round(32 * grid.width))
    mask = np.zeros((len(coarse.rows), len(coarse.columns)), np.uint8)
    areas = {part.number: np.count_nonzero(part.outline(mask, coarse)[2] < 0) for part in parts}
    return min(np.count_nonzero(mask == number) / area for number, area in areas.items() if number)


def _background(rng: Generator, grid: _Grid) -> ndarray:
    """A mottle of two colours, (3, H, W): random knots, a quadratic spline through them."""
    hue, other, light, dark = rng.random(4).tolist()
    tones = hls_to_rgb(hue, 0.3 + 0.2 * light, 0.4), hls_to_rgb(other, 0.15 + 0.2 * dark, 0.4)
    one, two = np.array(tones, np.float32)[..., None, None]  # (3, 1, 1)
    noise: ndarray = rng.random((14, 14), dtype=np.float32)
    for place in (grid.columns / grid.width, grid.rows[:, 0] / grid.height):
        knots = np.ascontiguousarray(noise.T)
        cell = (place * 12).astype(np.intp)
        t = (place * 12 - cell.astype(np.float32))[:, None]
        bend = t * t / 2
        noise = (0.5 - t + bend) * knots[cell] + (0.5 + t - 2 * bend) * knots[cell + 1] + bend * knots[cell + 2]
    return one + noise * (two - one)


def _box(seen: ndarray) -> tuple[int, int, int, int]:
    """The left, top, right and bottom of what is seen, (H, W) bool, half-open."""
    rows, columns = np.flatnonzero(seen.any(1)), np.flatnonzero(seen.any(0))
    return columns[0], rows[0], columns[-1] + 1, rows[-1] + 1
