"""Runs models on images. Predictions are cached on disk, under a key of all that decides them."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from labelflow.classifier import Classifier
from labelflow.data import Preprocessing, Unreadable
from labelflow.engine.progress import Counted
from labelflow.robustness.cache import Predictions, PredictionWriter, read_arrays
from labelflow.robustness.datasets import ImageSet, digest, subsample
from labelflow.robustness.images import CLEAN, AnyPerturbation, BatchPerturbation, PerturbedImages, load_images

MANY = 5000  # images whose contents take a while to hash
FORMAT = "2"  # of the cache: files of other formats are ignored


@dataclass
class Evaluator:
    """The models to compare, and how to run them."""

    models: Sequence[Classifier]
    folder: Path  # of cached predictions
    device: torch.device
    seed: int = 0
    batch: int = 0  # images; 0: 64, or fewer on a CPU, where large batches of large images are slow
    workers: int = -1
    precision: str = "no"
    skip_unreadable: int = 0
    quiet: bool = False
    samples: int = 0  # images of each data set; 0: all
    evaluated: int = field(default=0, init=False)  # images that passed through a model
    cached: int = field(default=0, init=False)  # images whose predictions, or outcomes of attacks, were cached before
    written: set[Path] = field(default_factory=set, init=False)  # by this evaluator
    attack_passes: int = field(default=0, init=False)  # forward passes of attacks

    def predict(
        self, dataset: ImageSet, perturbations: Sequence[AnyPerturbation] = (CLEAN,), title: str = ""
    ) -> list[list[Predictions]]:
        """Each model's predictions under each perturbation, by perturbation and then by model."""
        total = self.passes(dataset, perturbations)
        with Counted(title or dataset.name, "images", total, quiet=self.quiet) as progress:
            if len(dataset.source) >= MANY:
                progress.say(f"{dataset.name}: hashing {len(dataset.source)} images")
            paths = {(model, one): self._path(model, dataset, one) for model in self.models for one in perturbations}
            missing = [pair for pair, path in paths.items() if read_arrays(path) is None]
            passes = {pair: pair[1].levels * len(dataset.source) for pair in paths}
            done = total - sum(passes[pair] for pair in missing)
            now = sum(passes[pair] for pair, path in paths.items() if path in self.written)
            progress.pass_over(now)
            (progress.skip if missing else progress.pass_over)(done - now)
            self.cached += done - now
            self.written |= {paths[pair] for pair in missing}
            unreadable = Unreadable(self.skip_unreadable, progress.say)
            for preprocessing in dict.fromkeys(model.preprocessing for model, _ in missing):
                alike = [pair for pair in missing if pair[0].preprocessing == preprocessing]
                self._predict_alike(dataset, preprocessing, alike, paths, progress, unreadable)
        return [[self._read(paths[model, one], dataset) for model in self.models] for one in perturbations]

    def passes(self, dataset: ImageSet, perturbations: Sequence[AnyPerturbation] = (CLEAN,)) -> int:
        """Forward passes of an image if nothing is cached."""
        return len(self.models) * len(dataset.source) * sum(perturbation.levels for perturbation in perturbations)

    def example(self, dataset: ImageSet, perturbations: Sequence[AnyPerturbation]) -> list[list[ndarray]]:
        """The first readable image as the first model sees it, by perturbation and then by level: uint8 (S, S, 3)."""
        images = PerturbedImages(dataset, self.models[0].preprocessing, perturbations, self.seed)
        for index in range(len(dataset.source)):
            samples = [images[number, index] for number in range(len(perturbations))]
            if not any(sample.error for sample in samples):
                pairs = zip(samples, perturbations, strict=True)
                shown = [self._to_device(sample.levels, perturbation) for sample, perturbation in pairs]
                return [list((255 * one).round().byte().permute(0, 2, 3, 1).cpu().numpy()) for one in shown]
        return []

    def _to_device(self, images: Tensor, perturbation: AnyPerturbation) -> Tensor:
        """uint8 (B, 3, S, S) -> from 0 to 1 on the models' device, with perturbations that are applied there"""
        pixels = images.to(self.device, non_blocking=True).float().div_(255)
        return perturbation.apply(pixels) if isinstance(perturbation, BatchPerturbation) else pixels

    def _batch(self, preprocessing: Preprocessing) -> int:
        return self.batch or (64 if self.device.type != "cpu" else max(2, 4 * 224**2 // preprocessing.size**2))

    def _predict_alike(
        self,
        dataset: ImageSet,
        preprocessing: Preprocessing,
        missing: list[tuple[Classifier, AnyPerturbation]],
        paths: dict[tuple[Classifier, AnyPerturbation], Path],
        progress: Counted,
        unreadable: Unreadable,
    ) -> None:
        """Models with the same preprocessing share one loader."""
        perturbations = list(dict.fromkeys(perturbation for _, perturbation in missing))
        models_of = {own: {model.name: model for model, other in missing if other is own} for own in perturbations}
        writers = {
            own: PredictionWriter({name: paths[model, own] for name, model in models.items()}, own.levels)
            for own, models in models_of.items()
        }
        starts = [writers[perturbation].images for perturbation in perturbations]
        images = PerturbedImages(dataset, preprocessing, perturbations, self.seed)
        loader = iter(load_images(images, self._batch(preprocessing), self.workers, starts))
        for perturbation, models in models_of.items():
            columns = {name: self.columns(model, dataset) for name, model in models.items()}
            done = writers[perturbation].images * perturbation.levels * len(models)
            progress.pass_over(done)
            self.cached += done
            with writers[perturbation] as writer:
                while writer.images < len(dataset.source):
                    batch = next(loader)
                    unreadable(batch.errors)
                    pixels = self._to_device(batch.images, perturbation)
                    logits = {}
                    for name, model in models.items():
                        logits[name] = self.logits(model, pixels, columns[name])
                        progress.advance(len(pixels))
                    self.evaluated += len(models) * len(pixels)
                    writer.add(logits, batch.labels, batch.readable)
                writer.finish()

    def columns(self, model: Classifier, dataset: ImageSet) -> Tensor | None:
        """The columns of a model's logits for the classes of a data set; None: all of them, in their order."""
        columns = model.columns(dataset.classes)
        return None if columns is None else torch.tensor(columns, device=self.device)

    @torch.no_grad()  # not inference mode: models that cache tensors could not be attacked afterwards
    def logits(self, model: Classifier, images: Tensor, columns: Tensor | None) -> Tensor:
        """Of images from 0 to 1: (B, C), in float32"""
        precision = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.precision)
        with torch.autocast(self.device.type, precision) if precision else nullcontext():
            logits = model.model(images).float()
        return logits if columns is None else logits[:, columns]

    def _read(self, path: Path, dataset: ImageSet) -> Predictions:
        """With this data set's labels: another one may label the same images differently."""
        arrays = read_arrays(path)
        assert arrays is not None
        predictions = Predictions(**arrays)
        unreadable = int((~predictions.readable).sum())
        if unreadable > self.skip_unreadable:
            raise ValueError(unreadable_message(unreadable, dataset))
        return (
            predictions if dataset.labels is None else replace(predictions, labels=np.array(dataset.labels, np.int32))
        )

    def subsample(self, dataset: ImageSet) -> ImageSet:
        """`samples` of its images, or all."""
        return subsample(dataset, self.samples, self.seed)

    def _path(self, model: Classifier, dataset: ImageSet, perturbation: AnyPerturbation) -> Path:
        seeds = "" if isinstance(perturbation, BatchPerturbation) else f"{self.seed} {dataset.seeds_key}"
        how = (model.key, str(model.preprocessing), str(model.columns(dataset.classes)), self.precision)
        what = (dataset.key, str(dataset.cropped), perturbation.key, seeds)
        return self.folder / f"{digest(FORMAT, *how, *what)}.safetensors"


def unreadable_message(images: int, dataset: ImageSet) -> str:
    return f"could not read {images} images of {dataset.name}; fix or remove them, or use --skip-unreadable {images}"
