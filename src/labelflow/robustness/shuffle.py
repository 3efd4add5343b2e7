"""Accuracy on images whose patches are shuffled.

Naseer et al. (2021), "Intriguing Properties of Vision Transformers". Here each image is shuffled differently; the
paper's code draws one permutation for a batch.
"""

import numpy as np
from numpy import ndarray
from numpy.random import Generator

from labelflow.robustness.datasets import ImageSet
from labelflow.robustness.evaluator import Evaluator
from labelflow.robustness.images import CLEAN, AnyPerturbation
from labelflow.robustness.results import Chart, Metric, Section, Strip

GRIDS = ((2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (14, 14), (16, 16))  # rows and columns of patches


class Shuffle:
    """Permutes the patches of a grid, which divides the image."""

    levels = 1

    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns

    @property
    def key(self) -> str:
        return f"shuffle {self.rows} {self.columns}"

    def __call__(self, image: ndarray, level: int, random: Generator) -> ndarray:
        rows, columns = self.rows, self.columns
        height, width = image.shape[0] // rows, image.shape[1] // columns
        patches = image.reshape(rows, height, columns, width, 3).swapaxes(1, 2)
        shuffled = random.permutation(patches.reshape(rows * columns, height, width, 3))
        return shuffled.reshape(rows, columns, height, width, 3).swapaxes(1, 2).reshape(image.shape)


class ShuffleSuite:
    """Accuracy over the number of patches."""

    def __init__(self, evaluator: Evaluator, dataset: ImageSet) -> None:
        self.evaluator, self.dataset = evaluator, dataset
        sizes = [model.preprocessing.size for model in evaluator.models]
        self.grids = [grid for grid in GRIDS if all(size % patches == 0 for size in sizes for patches in grid)]
        self.perturbations: list[AnyPerturbation] = [CLEAN, *(Shuffle(*grid) for grid in self.grids)]
        self.passes = evaluator.passes(dataset, self.perturbations)

    def measure(self) -> Section:
        if not self.grids:
            return Section("shuffle", "Shuffled patches", [], notes=["Skipped: no grid divides the images evenly."])
        predictions = self.evaluator.predict(self.dataset, self.perturbations, "shuffled patches")  # [grid][model]
        grids = {f"{rows}×{columns}": rows * columns for rows, columns in [(1, 1), *self.grids]}
        scores = [[own.score[0] for own in by_grid] for by_grid in zip(*predictions, strict=True)]  # [model][grid]
        metric = self.dataset.metric
        lines = {
            model.name: [(float(np.log2(patches)), value) for patches, value in zip(grids.values(), own, strict=True)]
            for model, own in zip(self.evaluator.models, scores, strict=True)
        }
        chart = Chart(f"{self.dataset.title}, %, with shuffled patches", "log2 of the number of patches", lines)
        mean = Metric(f"mean {metric} over grids", [sum(own[1:]) / len(self.grids) for own in scores])
        details = [Metric(f"{metric}, {grid} patches", [own[at] for own in scores]) for at, grid in enumerate(grids)]
        notes = ["The patches of each image are shuffled at random; 1×1 is the clean image."]
        skipped = [f"{rows}×{columns}" for rows, columns in GRIDS if (rows, columns) not in self.grids]
        if skipped:
            notes.append(f"Skipped grids, which do not divide the images evenly: {', '.join(skipped)}.")
        images = [image for levels in self.evaluator.example(self.dataset, self.perturbations) for image in levels]
        strip = Strip("An example, shuffled", dict(zip(grids, images, strict=False)))
        return Section("shuffle", "Shuffled patches", [mean], [chart], details, notes, [strip])
