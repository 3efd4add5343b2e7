"""Accuracy on images that are partly black: random cells, or the most salient ones, or all others.

Naseer et al. (2021), "Intriguing Properties of Vision Transformers". Here each image has random cells of its own; the
paper's code draws once for a batch. The paper takes saliency from the attention of a DINO; here it is attention rollout
through the model that `--salient` names, the same for all models.

Shapes: B batch, S×S pixels, n = h×w cells (the saliency model's patches), L levels.
"""

import numpy as np
import torch
import torch.nn.functional as F
from numpy import ndarray
from numpy.random import Generator
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from labelflow.analysis.relevance import relevance
from labelflow.classifier import load, weights_key
from labelflow.robustness.datasets import ImageSet, digest
from labelflow.robustness.evaluator import Evaluator
from labelflow.robustness.images import CLEAN, BatchPerturbation
from labelflow.robustness.models import FromPixels
from labelflow.robustness.results import Chart, Metric, Section, Strip
from labelflow.robustness.settings import OcclusionSettings

TENTHS = 10


class PatchDrop:
    """Level k: k + 1 tenths of the cells of a grid, rounded down, are black."""

    levels = TENTHS - 1

    def __init__(self, grid: int = 14, shift: int = 0) -> None:
        self.grid, self.shift = grid, shift

    @property
    def key(self) -> str:
        return f"patch drop {self.grid} {self.shift}"

    def __call__(self, image: ndarray, level: int, random: Generator) -> ndarray:
        order = random.permutation(self.grid**2)  # the same at each level: what was occluded stays so
        occluded = np.zeros(self.grid**2, bool)
        occluded[order[: self.grid**2 * (level + 1) // TENTHS]] = True
        rows, columns = (np.arange(side) * self.grid // side for side in image.shape[:2])
        mask = np.roll(occluded.reshape(self.grid, self.grid)[rows][:, columns], self.shift, (0, 1))
        return np.where(mask[..., None], np.uint8(0), image)


class OcclusionSuite:
    """Accuracy over the fraction of the image that is occluded."""

    def __init__(self, evaluator: Evaluator, dataset: ImageSet, settings: OcclusionSettings) -> None:
        self.evaluator, self.dataset = evaluator, dataset
        self.perturbation = PatchDrop(settings.occlusion_grid, settings.occlusion_shift)
        for model in evaluator.models:
            if settings.occlusion_grid > model.preprocessing.size:
                raise ValueError(
                    f"--occlusion-grid must be at most {model.preprocessing.size}, the image size of {model.name}"
                )
        self.passes = evaluator.passes(dataset, [CLEAN, self.perturbation])

    def measure(self) -> Section:
        clean, occluded = self.evaluator.predict(self.dataset, [CLEAN, self.perturbation], "occlusion")
        scores = [one.score + other.score for one, other in zip(clean, occluded, strict=True)]  # [model], 0 to 9 tenths
        metric = self.dataset.metric
        lines = {
            model.name: [(tenths / TENTHS, value) for tenths, value in enumerate(own)]
            for model, own in zip(self.evaluator.models, scores, strict=True)
        }
        half = Metric(f"{metric}, 50 % occluded", [own[TENTHS // 2] for own in scores])
        mean = Metric(f"mean {metric}, 10 to 90 % occluded", [sum(own[1:]) / (TENTHS - 1) for own in scores])
        chart = Chart(f"{self.dataset.title}, %, with random cells occluded", "occluded fraction", lines)
        grid = self.perturbation.grid
        note = f"Random cells of a {grid}×{grid} grid are black, different ones for each image."
        if any(model.preprocessing.size % grid for model in self.evaluator.models):
            note += " The grid does not divide the images evenly: some cells are one pixel larger."
        examples = self.evaluator.example(self.dataset, [CLEAN, self.perturbation])
        images = [image for levels in examples for image in levels]
        strip = Strip("An example, by occluded fraction", {f"{10 * at} %": image for at, image in enumerate(images)})
        return Section("occlusion", "Occlusion", [half, mean], [chart], notes=[note], strips=[strip])


FRACTIONS = torch.arange(1, TENTHS + 1) / TENTHS  # of all relevance, (10,)


def foreground(maps: Tensor, fractions: Tensor) -> Tensor:
    """The fewest cells that hold a fraction of a map's relevance: maps (B, n), fractions (P,) -> (B, P, n) bool

    >>> foreground(torch.tensor([[0.1, 0.6, 0.3]]), torch.tensor([0.5, 0.7, 1.0]))
    tensor([[[False,  True, False],
             [False,  True,  True],
             [ True,  True,  True]]])
    """
    precise = torch.float32 if maps.device.type == "mps" else torch.float64  # Apple GPUs have no doubles
    ordered, order = maps.to(precise).sort(dim=1)
    total = ordered.cumsum(1)  # (B, n), from the least relevant on
    inside = total[:, None] > (1 - fractions.to(total)[:, None]) * total[:, None, -1:]  # (B, P, n)
    return torch.zeros_like(inside).scatter(2, order[:, None].expand_as(inside), inside)


class SalientCells(BatchPerturbation):
    """Levels 0 to 9: the cells with 1 to 10 tenths of the relevance are black; 10 to 18: all but those with 1 to 9."""

    levels = 2 * TENTHS - 1  # level 19 would be the clean image

    def __init__(self, model: FromPixels, size: int) -> None:
        """model: a ViT for images of size×size pixels."""
        self.model, self.size = model, size
        self.key = digest("salient", str(size), weights_key(model))

    def apply(self, images: Tensor) -> Tensor:
        maps = self.relevance(images)
        front = foreground(maps.flatten(1), FRACTIONS)  # (B, 10, n)
        occluded = torch.cat([front, ~front[:, :-1]], 1).unflatten(2, maps.shape[1:])  # (B, L, h, w)
        sides = zip(images.shape[2:], maps.shape[1:], strict=True)
        rows, columns = (torch.arange(side, device=maps.device) * cells // side for side, cells in sides)
        mask = occluded[:, :, rows][:, :, :, columns]  # (B, L, S, S)
        return (images[:, None] * ~mask[:, :, None]).flatten(0, 1)

    def relevance(self, images: Tensor) -> Tensor:
        """(B, h, w): what reaches the classifier from each cell"""
        resized = F.interpolate(images, (self.size, self.size), mode="bilinear", antialias=True)
        any_class = torch.zeros(len(resized), dtype=torch.long, device=resized.device)  # rollout ignores the class
        return relevance(self.model.model, self.model.normalise(resized), any_class, method="rollout")


def load_salient(name: str, device: torch.device) -> SalientCells:
    """From a run of a ViT, or one of timm's ViTs, which may name its weights; a ValueError for other models."""
    classifier = load(name)
    model, own = classifier.model, classifier.preprocessing
    if isinstance(model, VisionTransformer) and not model.num_classes:
        model.reset_classifier(1)  # DINO's have no classifier, but rollout ends at it
    cells = SalientCells(FromPixels(model, own.mean, own.std).eval().to(device), own.size)
    cells.relevance(torch.zeros(1, 3, cells.size, cells.size, device=device))  # raises if rollout does not support it
    return cells


class SalientSuite:
    """Accuracy over the fraction of the relevance that is occluded, or that alone is visible."""

    def __init__(self, evaluator: Evaluator, dataset: ImageSet, model: str) -> None:
        if not model:
            raise ValueError("the salient suite needs a ViT whose attention is the saliency: --salient RUN|MODEL")
        self.evaluator, self.dataset, self.model = evaluator, dataset, model
        self.perturbation = load_salient(model, evaluator.device)
        self.passes = evaluator.passes(dataset, [CLEAN, self.perturbation])

    def measure(self) -> Section:
        clean, occluded = self.evaluator.predict(self.dataset, [CLEAN, self.perturbation], "salient cells")
        names = [model.name for model in self.evaluator.models]
        scores = {  # [model][tenth]
            "salient cells occluded": [own.score[:TENTHS] for own in occluded],
            "only salient cells visible": [
                own.score[TENTHS:] + whole.score for whole, own in zip(clean, occluded, strict=True)
            ],
        }
        metrics = [
            Metric(f"{self.dataset.metric}, {title} (50 % of the relevance)", [own[TENTHS // 2 - 1] for own in values])
            for title, values in scores.items()
        ]
        charts = [
            Chart(
                f"{self.dataset.title}, %, {title}",
                "fraction of the relevance in these cells",
                {
                    name: list(zip(FRACTIONS.tolist(), own, strict=True))
                    for name, own in zip(names, values, strict=True)
                },
            )
            for title, values in scores.items()
        ]
        note = f"Saliency is attention rollout through {self.model}, for each image and the same for all models."
        return Section("salient", "Salient cells", metrics, charts, notes=[note], strips=self._strips(list(scores)))

    def _strips(self, titles: list[str]) -> list[Strip]:
        examples = self.evaluator.example(self.dataset, [self.perturbation, CLEAN])
        if not examples:
            return []
        images = [image for levels in examples for image in levels]
        captions = [f"{fraction:.0%}" for fraction in FRACTIONS.tolist()]
        halves = (images[:TENTHS], images[TENTHS:])
        return [
            Strip(f"An example, {title}", dict(zip(captions, half, strict=True)))
            for title, half in zip(titles, halves, strict=True)
        ]
