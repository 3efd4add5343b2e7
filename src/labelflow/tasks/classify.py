"""Image classification: what the engine needs to run a recipe.

Shapes: B batch, C classes.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

import timm
import torch
from torch import Generator, Tensor, nn

from labelflow.align import evaluating
from labelflow.chance import Purpose, generator, seed_of
from labelflow.classifier import timm_config
from labelflow.data import (
    Batch,
    BySize,
    FileCheck,
    PixelBatch,
    Preprocessing,
    Problem,
    Source,
    Stream,
    Unreadable,
    eval_batches,
    open_source,
    train_batches,
)
from labelflow.data.class_labels import labels_checksum
from labelflow.data.folder import Listed
from labelflow.data.geometry import Geometry
from labelflow.data.index import Joined
from labelflow.data.sampling import make_order
from labelflow.data.several import is_multi_label
from labelflow.data.table import Table
from labelflow.engine import Details
from labelflow.guides import UnmixedBatch
from labelflow.labels import Store, StoreLabels, check_keys
from labelflow.loss import Term, soft_labels
from labelflow.mixers import AnyMixer, Choose, NoMix, guide_parameters, make_mixer, mix_batch, remembers
from labelflow.models.create import create
from labelflow.models.variants import create_for_any_size, drop_paths_evenly
from labelflow.spec import build, parse
from labelflow.targets import TARGETS, Target, Truth
from labelflow.tasks.accuracy import Accuracy
from labelflow.tasks.checks import (
    check_classes,
    check_classifier,
    check_colours,
    check_run_colours,
    check_threshold,
    check_training,
    check_two_classes,
    weights_file,
)
from labelflow.tasks.epochs import check_mixing, count_epochs, is_mixed, make_growth
from labelflow.tasks.imbalance import training_loss, weights_checksum
from labelflow.tasks.memory import Earlier, check_memory, make_memory
from labelflow.tasks.multilabel import MultiLabel, check_dense_labels, check_several_labels
from labelflow.tasks.recipe import Recipe
from labelflow.tasks.teacher import check_teaching, how_to_label, make_teacher
from labelflow.tokens import check_image_size

CHECK_SECONDS = 3.0  # how long a start may be held up by a look at the files


class Evaluation:
    """What an evaluation needs: samples, and what to count."""

    def __init__(self, recipe: Recipe, tell: Callable[[str], None] = print) -> None:
        self.recipe = recipe
        self.eval_source = open_source(recipe.data, "val", tell)
        self.unreadable = Unreadable(recipe.data.skip_unreadable, tell, _hint(self.eval_source, recipe.data.source))
        self.multi_label, classes = is_multi_label(self.eval_source), self.eval_source.classes
        self.metric = MultiLabel(classes) if self.multi_label else Accuracy(classes, recipe.best)
        self._loader: Iterable[PixelBatch] | None = None

    def eval_batches(self, rank: int, processes: int) -> Iterable[PixelBatch]:
        if self._loader is None:  # keep its workers
            batch = self.recipe.training.eval_batch or self.recipe.training.micro_batch
            self._loader = eval_batches(self.eval_source, self.recipe.data, batch=batch, rank=rank, processes=processes)
        return self._loader

    def measure(self, student: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return self.metric.measure(student(batch.images).logits.float(), batch)

    def metrics(self, sums: dict[str, Tensor]) -> dict[str, float]:
        return self.metric.metrics(sums)

    def details(self) -> Details:
        return self.metric.details()

    @property
    def headline(self) -> str:
        return self.metric.headline


class Classification(Evaluation):
    """A classifier of a recipe on its data."""

    one_size = True

    def __init__(self, recipe: Recipe, tell: Callable[[str], None] = print) -> None:
        self.mixer = make_mixer(recipe.mixer)
        self.target: Target = build(recipe.target, TARGETS, "target")
        check_teaching(recipe, self.target)
        check_memory(recipe, self.target, remembers(self.mixer))
        check_threshold(recipe, self.target)
        super().__init__(recipe, tell)
        self.train_source = open_source(recipe.data, "train", tell)
        self.classes = list(self.train_source.classes)
        self.loss = training_loss(recipe, self.train_source)
        self.order = make_order(recipe.data.sampling, self.train_source, recipe.training.seed)
        if self.multi_label:
            check_several_labels(recipe, self.target, self.loss)
        else:
            check_two_classes(self.classes, recipe.data.source)
        check_classes(self.classes, list(self.eval_source.classes), "the evaluation data")
        self.samples = len(self.train_source)
        check_training(recipe.training, self.samples)
        epochs = count_epochs(recipe.training, self.samples)
        check_mixing(recipe, epochs)
        self.memory = make_memory(recipe.training, self.samples) if remembers(self.mixer) else None
        self.growth = make_growth(recipe.data, epochs)
        self.sizes = sorted({*recipe.data.sizes, recipe.data.image_size})
        name, arguments = model_arguments(recipe, len(self.classes))
        check_colours(name, recipe.init, recipe.data.mean, recipe.data.std)
        check_classifier(recipe.init)
        check_run_colours(recipe.init, recipe.data.mean, recipe.data.std)
        self.teacher = make_teacher(recipe, self.target, self.classes, self.multi_label)
        if self.teacher:
            for line in self.teacher.about:
                tell(line)
        torch.manual_seed(seed_of(recipe.training.seed, Purpose.WEIGHTS))
        make = create_for_any_size if self.growth else create
        model = make(name, init=weights_file(recipe.init), **arguments)
        if recipe.drop_path_schedule == "constant":
            drop_paths_evenly(model, recipe.drop_path)
        self.timm_config = timm_config(model, name, arguments, self.classes, Preprocessing.of_data(recipe.data))
        if recipe.training.checkpointing:
            model.set_grad_checkpointing()  # type: ignore[operator]
        with evaluating(model):
            for size in self.sizes:
                check_image_size(model, size, recipe.model)
        self.student = self.target.student(model)
        if self.teacher:
            self.teacher.fit(self.student)
        self.labellers = self._labellers() if recipe.data.labels else {}  # by the size of images
        for size in self.sizes:
            self._rehearse(size)
        stores = [labeller.store for labeller in self.labellers.values()]  # the same at every size
        self.labels = stores[0].checksum if stores else ""  # which dense labels these are
        self.file_check = FileCheck([])

    @property
    def config(self) -> dict[str, Any]:
        """What timm makes the model of again, and what must be the same on resume."""
        return {
            **self.timm_config,
            "multi_label": self.multi_label,
            "samples": self.samples,
            "image_labels": [labels_checksum(source) for source in (self.train_source, self.eval_source)],
            "dense_labels": self.labels,
            "teacher": self.teacher.key if self.teacher else "",
            "teacher_model": self.teacher.name if self.teacher else "",
            "class_weights": weights_checksum(self.loss),
            "guide_parameters": guide_parameters(self.mixer) + (self.teacher.parameters if self.teacher else 0),
        }

    def train_batches(self, updates: int, first_update: int, rank: int, processes: int) -> Iterator[PixelBatch]:
        training, labeller = self.recipe.training, self.labellers.get(self.recipe.data.image_size)
        batches = train_batches(
            self.train_source,
            self.recipe.data,
            batch=training.batch,
            micro_batch=training.micro_batch,
            updates=updates,
            seed=training.seed,
            rank=rank,
            processes=processes,
            first_update=first_update,
            labeller=BySize(self.growth, self.labellers) if self.growth and self.labellers else labeller,
            growth=self.growth,
            order=self.order,
            spatial=self.target.teacher == "tokens",
        )
        try:
            for batch in batches:
                yield batch._replace(problems=batch.problems + self.file_check.found())
        finally:
            self.file_check.stop()

    @torch.no_grad()
    def _rehearse(self, size: int) -> None:
        """What a mixer or a target refuses of a model, it refuses now: two images, as if in training."""
        labels = torch.eye(2, len(self.classes)) if self.multi_label else torch.tensor([0, 1])
        images = torch.rand(2, 3, size, size, generator=generator(0))
        dense = None
        if self.labellers:
            assert not isinstance(self.train_source, Stream)
            first = self.labellers[size](self.train_source.key(0), Geometry((size, size)))
            dense = first.stack([first, first]).to(images.device)
        batch = Batch(images, labels, torch.ones(2), [], dense, spatial=images)
        with evaluating(self.student):
            mixers = self.mixer.mixers if isinstance(self.mixer, Choose) else [self.mixer]
            for mixer in [*mixers, NoMix()] if self.recipe.mix_off_epoch else mixers:
                earlier = self._step(self.student, batch, generator(0), mixer)[1]
                if earlier:
                    self._step(self.student, batch, generator(0), mixer, earlier)

    def find_unreadable(self) -> list[Problem]:
        """Files that can't be read, by the main process. Of many, some are found later, while the model is trained."""
        listed = [source for source in (self.train_source, self.eval_source) if isinstance(source, Listed)]
        paths = Joined([source.files() for source in listed])
        self.file_check = FileCheck(paths, listed[0].root if listed else None)
        self.file_check.wait(CHECK_SECONDS)
        found = self.file_check.found()
        if len(found) > self.recipe.data.skip_unreadable:
            self.file_check.stop()
        return found

    def _labellers(self) -> dict[int, StoreLabels]:
        if not Path(self.recipe.data.labels).is_dir():
            raise ValueError(f"there is no folder {self.recipe.data.labels}; {how_to_label(self.recipe)}")
        store = Store(self.recipe.data.labels)
        check_classes(self.classes, list(store.manifest.classes), f"the labels {self.recipe.data.labels}")
        check_dense_labels(self.multi_label, store)
        if isinstance(self.train_source, Stream):
            raise ValueError(
                f"a stream such as {self.recipe.data.source} has no sample names, so no labels can be found"
            )
        check_keys(store, self.train_source)
        grids = {size: self.student.token_grid((size, size)) for size in self.sizes}
        labels = StoreLabels(store, grids[self.recipe.data.image_size], self.recipe.data.compat)
        return {size: labels.on(grid) for size, grid in grids.items()}

    def terms(self, student: nn.Module, batch: Batch, generator: Generator) -> list[Term]:
        mixer = self.mixer if is_mixed(self.recipe, batch.epoch) else NoMix()
        earlier = self.memory.recall(batch.epoch) if self.memory else None
        terms, seen = self._step(student, batch, generator, mixer, earlier)
        if self.memory and seen and is_mixed(self.recipe, batch.epoch):
            self.memory.remember(seen)
        return terms

    def _step(
        self,
        student: nn.Module,
        batch: Batch,
        generator: Generator,
        mixer: AnyMixer,
        earlier: Earlier | None = None,
    ) -> tuple[list[Term], Earlier | None]:
        """The terms of a batch's loss, and, where a mixer pastes from the batch before, what the next one needs."""
        smoothing, classes = self.recipe.smoothing, len(self.classes)
        dense = batch.dense or (self.teacher.labels(batch.images, self.student) if self.teacher else None)
        dense = dense.smoothed(smoothing, classes) if dense else None
        truth = Truth(soft_labels(batch.labels, classes, smoothing), dense, loss=self.loss)
        data = self.recipe.data
        # Guides use the unwrapped student, so that no process waits for another.
        pasted = earlier.images if earlier else None
        unmixed = UnmixedBatch(batch.images, truth.classes, self.student, data.mean, data.std, self.loss, pasted)
        mix, guidance = mix_batch(mixer, unmixed, generator)
        images = batch.images
        if earlier and mix.pool:
            images, truth = earlier.behind(images, truth)
        taught = self.teacher.taught(images, mix) if self.teacher else None
        tokens = self.teacher.token_labels(batch.spatial, self.student, generator) if self.teacher else None
        tokens = tokens.smoothed(smoothing, classes) if tokens else None
        truth = truth._replace(clean=guidance.logits if guidance else None, taught=taught, tokens=tokens)
        mixed = mix.apply(images)
        output = student(mixed, mix)
        terms = self.target(output, truth, mix)
        if not self.memory:
            return terms, None
        pixels = mixed if mix.at == "image" else replace(mix, at="image").apply(images)
        return terms, Earlier.of(pixels, truth, mix, output)


def _hint(source: Source | Stream, name: str) -> str:
    """What helps with files that can't be read."""
    if isinstance(source, Table):
        return f"; paths in {name} are seen from its folder"
    return f"; labelflow data check {quote(name)} finds all such files" if isinstance(source, Listed) else ""


def model_arguments(recipe: Recipe, num_classes: int) -> tuple[str, dict[str, Any]]:
    """The name and the arguments with which timm makes the recipe's model."""
    name, given = parse(recipe.model)
    arguments: dict[str, Any] = {"num_classes": num_classes, "drop_path_rate": recipe.drop_path}
    cfg = timm.get_pretrained_cfg(name) if timm.is_model(name) else None
    if cfg is not None and cfg.fixed_input_size:
        arguments["img_size"] = recipe.data.image_size
    return name, arguments | given
