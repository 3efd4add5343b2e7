"""What the engine needs of a dense task, as far as segmentation and detection have it in common."""

import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from labelflow.chance import Purpose, seed_of
from labelflow.data import Unreadable
from labelflow.engine import Details, Run
from labelflow.tasks.classify import check_classes, check_colours, check_training
from labelflow.tasks.dense.loading import DenseSource
from labelflow.tasks.dense.student import Whole

Colours = tuple[float, ...]  # of red, green and blue


def or_none(value: float) -> float | None:
    """None where a metric has nothing to measure, which JSON can tell."""
    return None if math.isnan(value) else value


def check_run_colours(init: str, mean: Colours, std: Colours) -> None:
    """A run's model knows images that were normalised in its way."""
    if not init or not Path(init).is_dir():
        return
    seen = Run(init).read("recipe.json")["data"]
    if (tuple(seen["mean"]), tuple(seen["std"])) != (mean, std):
        told = [" ".join(map(str, seen[name])) for name in ("mean", "std")]
        raise ValueError(f"{init} was trained with other colours: --mean {told[0]} --std {told[1]}")


class DenseTask:
    """A model of a recipe on its data; without training, the data to evaluate on alone. A task says where samples come
    from (`open`), how they are seen (`train_loader`, `eval_loader`) and what the model is (`make_model`), and measures.
    """

    open: Callable[[Any, str], Any]  # data, split -> source
    train_loader: Callable[..., Iterator[Any]]
    eval_loader: Callable[..., Iterable[Any]]

    def __init__(self, recipe: Any, tell: Callable[[str], None] = print, training: bool = True) -> None:
        self.recipe = recipe
        self.eval_source = self.open(recipe.data, "val")
        self.classes = list(self.eval_source.classes)
        self.unreadable = Unreadable(recipe.data.skip_unreadable, tell)
        self._details: Details = {}
        self._loader: Iterable[Any] | None = None
        if training:
            self._prepare()

    def _prepare(self) -> None:
        recipe, training = self.recipe, self.recipe.training
        if training.deterministic and torch.cuda.is_available():
            raise ValueError(
                "on a GPU, not all that segmenters and detectors compute repeats: leave --deterministic away"
            )
        self.train_source: DenseSource = self.open(recipe.data, "train")
        check_classes(list(self.train_source.classes), self.classes, "the evaluation data")
        self.samples = len(self.train_source)
        check_training(training, self.samples)
        check_colours(recipe.backbone.partition("(")[0], recipe.init, *self.colours())
        torch.manual_seed(seed_of(training.seed, Purpose.WEIGHTS))
        self.model = self.make_model()  # a run that it starts from is a classifier's, or ValueError
        for run in (recipe.backbone, recipe.init):
            check_run_colours(run, *self.colours())
        if training.checkpointing:
            self.model.set_grad_checkpointing()
        self.student = Whole(self.model)

    def make_model(self) -> Any:
        raise NotImplementedError

    def colours(self) -> tuple[Colours, Colours]:
        """Mean and spread that images are normalised with."""
        raise NotImplementedError

    def train_batches(self, updates: int, first_update: int, rank: int, processes: int) -> Iterator[Any]:
        training = self.recipe.training
        return self.train_loader(
            self.train_source,
            self.recipe.data,
            batch=training.batch,
            micro_batch=training.micro_batch,
            updates=updates,
            seed=training.seed,
            rank=rank,
            processes=processes,
            first_update=first_update,
        )

    def eval_batches(self, rank: int, processes: int) -> Iterable[Any]:
        if self._loader is None:  # its workers live on
            batch = self.recipe.training.eval_batch or self.recipe.training.micro_batch
            self._loader = self.eval_loader(
                self.eval_source, self.recipe.data, batch=batch, rank=rank, processes=processes
            )
        return self._loader

    def details(self) -> Details:
        return self._details
