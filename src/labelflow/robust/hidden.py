"""Pictures of which parts are missing, or in disorder: what is left of a model's accuracy.

Naseer et al. (2021), "Intriguing Properties of Vision Transformers". Here each image has draws of its own, while the
paper's code draws once for a batch.

Shapes: S×S pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy import ndarray
from numpy.random import Generator

from labelflow.robust.results import Chart, Finding, Section, Strip
from labelflow.robust.session import Session
from labelflow.robust.sets import Set

TENTHS = 10
SHUFFLES = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (14, 14), (16, 16))  # rows and columns of cells


@dataclass(frozen=True)
class Hiding:
    """What is hidden and shuffled."""

    occlusion_grid: int = 14
    """Cells in a row and in a column, of which tenths are hidden; the image's size hides single pixels."""
    occlusion_shift: int = 0
    """By so many pixels the cells are moved to the right and down, so that they don't fall on a model's patches."""
    salient: str = ""
    """A run of a ViT, or one of timm's, such as vit_small_patch16_224.dino: its attention tells which cells matter
    most, and these are hidden, or all others."""

    def __post_init__(self) -> None:
        if self.occlusion_grid < 1 or self.occlusion_shift < 0:
            raise ValueError("--occlusion-grid must be at least 1, and --occlusion-shift at least 0")


class PatchDrop:
    """Level k: k tenths of the cells of a grid, rounded down, are black."""

    levels = TENTHS

    def __init__(self, grid: int = 14, shift: int = 0) -> None:
        self.grid, self.shift = grid, shift

    @property
    def key(self) -> str:
        return f"patch drop {self.grid} {self.shift}"

    def __call__(self, picture: ndarray, level: int, random: Generator) -> ndarray:
        dropped = random.permutation(self.grid**2)[: self.grid**2 * level // TENTHS]  # what is hidden stays hidden
        hidden = np.zeros(self.grid**2, bool)
        hidden[dropped] = True
        rows, columns = (np.arange(side) * self.grid // side for side in picture.shape[:2])
        cells = np.roll(hidden.reshape(self.grid, self.grid)[rows][:, columns], self.shift, (0, 1))
        return np.where(cells[..., None], np.uint8(0), picture)


class Shuffle:
    """Level l: the cells of grid l change places."""

    def __init__(self, grids: Sequence[tuple[int, int]]) -> None:
        self.grids = tuple(grids)
        self.levels = len(self.grids)

    @property
    def key(self) -> str:
        return f"shuffle {self.grids}"

    def __call__(self, picture: ndarray, level: int, random: Generator) -> ndarray:
        rows, columns = self.grids[level]
        height, width = picture.shape[0] // rows, picture.shape[1] // columns
        cells = (
            picture.reshape(rows, height, columns, width, 3).swapaxes(1, 2).reshape(rows * columns, height, width, 3)
        )
        mixed = random.permutation(cells).reshape(rows, columns, height, width, 3)
        return mixed.swapaxes(1, 2).reshape(picture.shape)


class Occlusion:
    """Accuracy over the part of the picture that is hidden."""

    def __init__(self, session: Session, own: Set, settings: Hiding) -> None:
        self.session, self.own, self.change = session, own, PatchDrop(settings.occlusion_grid, settings.occlusion_shift)
        for model in session.models:
            if settings.occlusion_grid > model.look.size:
                raise ValueError(f"{model.name} sees {model.look.size} pixels in a row: --occlusion-grid can't be more")

    def measure(self) -> Section:
        (answers,) = self.session.ask(self.own, [self.change], "occlusion")
        lines = {
            model.name: [(level / TENTHS, value) for level, value in enumerate(found.top1)]
            for model, found in zip(self.session.models, answers, strict=True)
        }
        half = Finding("top-1, half of it hidden", [found.top1[TENTHS // 2] for found in answers])
        mean = Finding("mean over 1 to 9 tenths hidden", [sum(found.top1[1:]) / (TENTHS - 1) for found in answers])
        chart = Chart("Top-1 accuracy, %, with cells hidden", "part of the picture that is hidden", lines)
        grid = self.change.grid
        note = f"Random cells of a {grid}×{grid} grid are black, others for each image."
        if any(model.look.size % grid for model in self.session.models):
            note += " It does not divide the picture: some cells are a pixel larger."
        seen = self.session.example(self.own, [self.change])[0]
        strip = Strip("An image, so much of it hidden", {f"{10 * level} %": one for level, one in enumerate(seen)})
        return Section("occlusion", "Occlusion", [half, mean], [chart], notes=[note], strips=[strip])


class Shuffling:
    """Accuracy over the number of cells that are shuffled."""

    def __init__(self, session: Session, own: Set) -> None:
        self.session, self.own = session, own
        sides = [model.look.size for model in session.models]
        self.grids = [grid for grid in SHUFFLES if all(side % cells == 0 for side in sides for cells in grid)]
        self.change = Shuffle(self.grids)
        self.left_out = [grid for grid in SHUFFLES if grid not in self.grids]

    def measure(self) -> Section:
        if len(self.grids) == 1:
            return Section("shuffle", "Shuffling", [], notes=["No grid of cells divides the pictures: left out."])
        (answers,) = self.session.ask(self.own, [self.change], "shuffling")
        cells = [rows * columns for rows, columns in self.grids]
        names = [model.name for model in self.session.models]
        lines = {
            name: [(float(np.log2(count)), value) for count, value in zip(cells, found.top1, strict=True)]
            for name, found in zip(names, answers, strict=True)
        }
        details = [
            Finding(f"{rows}×{columns} cells", [found.top1[level] for found in answers])
            for level, (rows, columns) in enumerate(self.grids)
        ]
        mean = Finding("mean over shuffles", [sum(found.top1[1:]) / len(self.grids[1:]) for found in answers])
        chart = Chart("Top-1 accuracy, %, with cells shuffled", "log2 of the number of cells", lines)
        notes = ["The cells of each image change places at random; 1×1 is the clean picture."]
        if self.left_out:
            told = ", ".join(f"{rows}×{columns}" for rows, columns in self.left_out)
            notes.append(f"{told} cells do not divide the pictures and are left out.")
        seen = self.session.example(self.own, [self.change])[0]
        strip = Strip(
            "An image, shuffled",
            {f"{rows}×{columns}": one for (rows, columns), one in zip(self.grids, seen, strict=True)},
        )
        return Section("shuffle", "Shuffling", [mean], [chart], details, notes, [strip])
