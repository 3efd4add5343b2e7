"""What is computed of each trained model of a study, beside its accuracy: one function, one line in MEASURES."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from labelflow.data.imagenet import wordnet_names
from labelflow.engine.run import Run
from labelflow.recipes import find_any
from labelflow.robustness.datasets import open_dataset
from labelflow.robustness.evaluator import Evaluator
from labelflow.robustness.models import evaluation_data, load_models
from labelflow.robustness.settings import Settings
from labelflow.robustness.suites import SUITES
from labelflow.tasks import train_run
from labelflow.tasks.recipe import read_recipe

Metrics = dict[str, float]
IMAGES, PAIRS, SAMPLES = 512, 512, 1000
SCENES = "world(train=1024, val=1000, objects=2)"  # of segmentation
PETS = "data/pets"
ACCURACIES = {"top-1": "top1", "mAP": "map"}
NAMES = {"CutMix": "cutmix", "TransMix": "transmix", "TL-Align": "tl_align"}


def fluctuation(run: Path) -> Metrics:
    """RMSE of the aligned share against λ (TL-Align, Figure 3), and of TransMix's."""
    from labelflow.figures import rmse  # brings matplotlib
    from labelflow.figures.base import FigureRequest

    found = rmse.compute(FigureRequest((str(run),), weights="last", count=IMAGES)).rows[0].now
    return {"rmse": found.tl_align, "rmse_transmix": found.transmix}


def truth(run: Path) -> Metrics:
    """How far each method's share is from similarity (TL-Align, Figure 4) and from the visible objects."""
    from labelflow.figures import ratio
    from labelflow.figures.base import FigureRequest

    found = ratio.compute(FigureRequest((str(run),), weights="last", count=PAIRS))
    metrics = {}
    for name, key in NAMES.items():
        metrics[f"similarity_distance_{key}"] = found.distance[name]
        if name in found.truth_distance:
            metrics[f"truth_distance_{key}"] = found.truth_distance[name]
    return metrics


def occlusion(run: Path) -> Metrics:
    """Mean accuracy with 10 to 90 % of the cells occluded."""
    return _robust(run, "occlusion", "occluded", "mean {}, 10 to 90 % occluded")


def corruptions(run: Path) -> Metrics:
    """Accuracy, the mean over the 15 corruptions of ImageNet-C and their severities (TL-Align, Table 6)."""
    return _robust(run, "corruptions", "corrupted", "mean {} over 15 corruptions")


def segmentation(run: Path) -> Metrics:
    """mIoU of a segmenter that starts from the trained model, on scenes with two objects (TL-Align, Table 3)."""
    return {"segmentation_miou": _segmenter_miou(run, source=SCENES, epochs=4, eval_epochs=4)}


def pets(run: Path) -> Metrics:
    """The same with an FCN, on photographs of pets: animal, background and outline (Token Labeling, Table 5)."""
    return {"pets_miou": _segmenter_miou(run, source=PETS, head="fcn", lr=0.0005, epochs=1, eval_epochs=1)}


def _segmenter_miou(run: Path, **settings: Any) -> float:
    seed = read_recipe(Run(run)).training.seed
    recipe = find_any("segment_quickstart", "segment").recipe.change(
        backbone=str(run), workers=0, seed=seed, **settings
    )
    return train_run(recipe, run / "segmenter", resume=True, quiet=True)["miou"]


def _robust(run: Path, suite: str, adjective: str, shown: str) -> Metrics:
    """Top-1, or mAP of images with several labels; shown: as the suite calls it."""
    device = torch.device("cpu")
    models = load_models([str(run)], device, weights="last")
    evaluator = Evaluator(models, run / "predictions", device, workers=0, quiet=True, samples=SAMPLES)
    data = evaluation_data(models)
    assert data is not None
    dataset = evaluator.subsample(open_dataset(data, True, wordnet_names(models[0].classes)))
    section = SUITES[suite](evaluator, dataset, Settings()).measure()
    (value,) = next(own.values for own in section.metrics if own.name == shown.format(dataset.metric))
    return {f"{adjective}_{ACCURACIES[dataset.metric]}": float(value)}


class Measure(NamedTuple):
    compute: Callable[[Path], Metrics]  # of the folder of a run
    metrics: tuple[str, ...]  # the names of what it computes


SHARES = tuple(f"{kind}_distance_{name}" for kind in ("similarity", "truth") for name in NAMES.values())
MEASURES = {
    "fluctuation": Measure(fluctuation, ("rmse", "rmse_transmix")),
    "truth": Measure(truth, SHARES),
    "occlusion": Measure(occlusion, ("occluded_top1", "occluded_map")),
    "corruptions": Measure(corruptions, ("corrupted_top1", "corrupted_map")),
    "segmentation": Measure(segmentation, ("segmentation_miou",)),
    "pets": Measure(pets, ("pets_miou",)),
}
