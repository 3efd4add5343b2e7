"""Pictures of which parts are missing, or in disorder: what is left of a model's accuracy.

Naseer et al. (2021), "Intriguing Properties of Vision Transformers". Here each image has draws of its own, while the
paper's code draws once for a batch.

Shapes: S×S pixels.
"""

import numpy as np
from numpy import ndarray
from numpy.random import Generator

from labelflow.robust.pictures import CLEAN, AnyChange
from labelflow.robust.results import Chart, Finding, Section, Strip
from labelflow.robust.session import Session
from labelflow.robust.sets import Set
from labelflow.robust.settings import Hiding

TENTHS = 10
SHUFFLES = ((2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (14, 14), (16, 16))  # rows and columns of cells


class PatchDrop:
    """Level k: k + 1 tenths of the cells of a grid, rounded down, are black."""

    levels = TENTHS - 1

    def __init__(self, grid: int = 14, shift: int = 0) -> None:
        self.grid, self.shift = grid, shift

    @property
    def key(self) -> str:
        return f"patch drop {self.grid} {self.shift}"

    def __call__(self, picture: ndarray, level: int, random: Generator) -> ndarray:
        dropped = random.permutation(self.grid**2)[: self.grid**2 * (level + 1) // TENTHS]  # what is hidden stays so
        hidden = np.zeros(self.grid**2, bool)
        hidden[dropped] = True
        rows, columns = (np.arange(side) * self.grid // side for side in picture.shape[:2])
        cells = np.roll(hidden.reshape(self.grid, self.grid)[rows][:, columns], self.shift, (0, 1))
        return np.where(cells[..., None], np.uint8(0), picture)


class Shuffle:
    """The cells of a grid, which divides the picture, change places."""

    levels = 1

    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns

    @property
    def key(self) -> str:
        return f"shuffle {self.rows} {self.columns}"

    def __call__(self, picture: ndarray, level: int, random: Generator) -> ndarray:
        rows, columns = self.rows, self.columns
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
            if settings.occlusion_grid > model.preprocessing.size:
                raise ValueError(
                    f"{model.name} sees {model.preprocessing.size} pixels in a row: --occlusion-grid can't be more"
                )
        self.passes = session.passes(own, [CLEAN, self.change])

    def measure(self) -> Section:
        clean, hidden = self.session.ask(self.own, [CLEAN, self.change], "occlusion")
        top1 = [own.top1 + found.top1 for own, found in zip(clean, hidden, strict=True)]  # of 0 to 9 tenths
        lines = {
            model.name: [(tenths / TENTHS, value) for tenths, value in enumerate(own)]
            for model, own in zip(self.session.models, top1, strict=True)
        }
        half = Finding("top-1, half of it hidden", [own[TENTHS // 2] for own in top1])
        mean = Finding("mean over 1 to 9 tenths hidden", [sum(own[1:]) / (TENTHS - 1) for own in top1])
        chart = Chart("Top-1 accuracy, %, with cells hidden", "part of the picture that is hidden", lines)
        grid = self.change.grid
        note = f"Random cells of a {grid}×{grid} grid are black, others for each image."
        if any(model.preprocessing.size % grid for model in self.session.models):
            note += " It does not divide the picture: some cells are a pixel larger."
        seen = [one for levels in self.session.example(self.own, [CLEAN, self.change]) for one in levels]
        strip = Strip("An image, so much of it hidden", {f"{10 * tenths} %": one for tenths, one in enumerate(seen)})
        return Section("occlusion", "Occlusion", [half, mean], [chart], notes=[note], strips=[strip])


class Shuffling:
    """Accuracy over the number of cells that are shuffled."""

    def __init__(self, session: Session, own: Set) -> None:
        self.session, self.own = session, own
        sides = [model.preprocessing.size for model in session.models]
        self.grids = [grid for grid in SHUFFLES if all(side % cells == 0 for side in sides for cells in grid)]
        self.left_out = [grid for grid in SHUFFLES if grid not in self.grids]
        self.changes: list[AnyChange] = [CLEAN, *(Shuffle(*grid) for grid in self.grids)]
        self.passes = session.passes(own, self.changes)

    def measure(self) -> Section:
        if not self.grids:
            return Section("shuffle", "Shuffling", [], notes=["No grid of cells divides the pictures: left out."])
        answers = self.session.ask(self.own, self.changes, "shuffling")  # [grid][model]
        grids = [(1, 1), *self.grids]
        cells = [rows * columns for rows, columns in grids]
        names = [model.name for model in self.session.models]
        top1 = [[found.top1[0] for found in own] for own in zip(*answers, strict=True)]  # [model][grid]
        lines = {
            name: [(float(np.log2(count)), value) for count, value in zip(cells, own, strict=True)]
            for name, own in zip(names, top1, strict=True)
        }
        details = [
            Finding(f"{rows}×{columns} cells", [own[at] for own in top1]) for at, (rows, columns) in enumerate(grids)
        ]
        mean = Finding("mean over shuffles", [sum(own[1:]) / len(self.grids) for own in top1])
        chart = Chart("Top-1 accuracy, %, with cells shuffled", "log2 of the number of cells", lines)
        notes = ["The cells of each image change places at random; 1×1 is the clean picture."]
        if self.left_out:
            told = ", ".join(f"{rows}×{columns}" for rows, columns in self.left_out)
            notes.append(f"{told} cells do not divide the pictures and are left out.")
        seen = [one for levels in self.session.example(self.own, self.changes) for one in levels]
        captions = (f"{rows}×{columns}" for rows, columns in grids)
        strip = Strip("An image, shuffled", dict(zip(captions, seen, strict=False)))
        return Section("shuffle", "Shuffling", [mean], [chart], details, notes, [strip])
