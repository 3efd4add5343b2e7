"""What the engine needs of a dense task, as far as segmentation and detection have it in common."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from labelflow.chance import Purpose, seed_of
from labelflow.data import Problem, Unreadable
from labelflow.engine import Details
from labelflow.tasks.checks import Colours, check_classes, check_colours, check_run_colours, check_training
from labelflow.tasks.dense.loading import DenseSource


def or_none(value: float) -> float | None:
    """None where a metric has nothing to measure, since JSON has no NaN."""
    return None if math.isnan(value) else value


class DenseTask:
    """A model of a recipe on its data; without training, the data to evaluate on alone. A task says where samples come
    from (`open`), how they are seen (`train_loader`, `eval_loader`) and what the model is (`make_model`), and measures.
    """

    open: Callable[[Any, str], Any]  # data, split -> source
    train_loader: Callable[..., Iterator[Any]]
    eval_loader: Callable[..., Iterable[Any]]
    one_size = False
    memory = None  # of earlier batches

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
            raise ValueError("segmenters and detectors are not deterministic on a GPU: omit --deterministic")
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
        self.student = DenseStudent(self.model)

    def find_unreadable(self) -> list[Problem]:
        """None are looked for before they are read."""
        return []

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


class DenseStudent(nn.Module):
    """Nothing but the model: `model` is what is trained, evaluated and saved."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = with_shared_norms(model)
        self.fast: Callable[..., Any] | None = None

    def forward(self, *inputs: Any) -> Any:
        return self.fast(*inputs) if self.fast and self.training else self.model(*inputs)

    def compile(self, *args: Any, **how: Any) -> None:
        """For training, whose images have one size; those of an evaluation have many, and are not compiled for."""
        self.fast = torch.compile(self.model.forward, *args, **how)

    def no_weight_decay(self) -> set[str]:
        own: Any = getattr(self.model, "no_weight_decay", set)
        return {f"model.{name}" for name in own()}


def with_shared_norms(model: nn.Module) -> nn.Module:
    """Batch norms with the statistics of all processes, as published. Only GPUs can share them."""
    several = torch.distributed.is_available() and torch.distributed.is_initialized()
    if several and torch.distributed.get_world_size() > 1 and torch.cuda.is_available():
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return model
