"""Runs on disk: start or resume one, and load a finished one."""

import hashlib
import json
import platform
import sys
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import accelerate
import timm
import torch
import torchvision
from accelerate import Accelerator
from torch import nn

from labelflow.classifier import load
from labelflow.data import fit_micro_batch
from labelflow.data.changes import DataFiles
from labelflow.data.outputs import check_output
from labelflow.engine import Details, Interrupted, Run, Task, Training, evaluate, make_accelerator, train
from labelflow.engine.freezing import freezing_summary
from labelflow.engine.groups import parameter_groups
from labelflow.engine.lock import on_main_process, one_writer
from labelflow.engine.optim import shorten_warmup
from labelflow.engine.progress import Progress
from labelflow.engine.run import CONFIG
from labelflow.engine.setup import flags_restored, resolve_precision
from labelflow.models.create import load_exactly
from labelflow.process import is_main_process, process_count
from labelflow.settings import change, differences, flat, setting_names
from labelflow.tasks.checks import check_classes
from labelflow.tasks.recipe import AnyRecipe, Recipe, kind_of, read_any_recipe

AnyRecipeType = TypeVar("AnyRecipeType", bound=AnyRecipe)
# Settings that may change on resume: they affect what is saved and shown, not what is computed.
RESUME_MAY_CHANGE = {
    *("workers", "skip_unreadable", "hash_data"),
    *("save_updates", "keep", "log_updates", "tracker", "eval_batch"),
}
# Settings that may change, too, but affect what is computed from there on, and how.
RESUME_MAY_ALTER = {
    "micro_batch": "images get different mixing partners",
    "precision": "numbers are rounded differently",
    "compile": "numbers are rounded differently",
}


@flags_restored()
def train_run(
    recipe: AnyRecipe,
    folder: Path,
    resume: bool,
    name: str = "",
    quiet: bool = False,
    free: Collection[str] = RESUME_MAY_CHANGE,
    last: bool = True,
) -> dict[str, float]:
    """Train a recipe in a folder; returns the metrics of the last evaluation.

    free: settings that may differ from those the run was started with. last: whether launched processes end afterwards.
    """
    run, kind, asked = Run(folder), kind_of(recipe), recipe
    if isinstance(recipe, Recipe):
        check_output(recipe.data.source, folder)
    with one_writer(folder) as warning, Progress(quiet=quiet or not is_main_process()) as progress:
        started_before, goes_on = (run / "recipe.json").exists(), run.has_progress()
        recipe = fitted(_with_precision_of(run, recipe) if resume and started_before and goes_on else recipe)
        accelerator = make_accelerator(recipe.training, folder)
        before, altered = _check_folder(run, recipe, resume, free) if goes_on else (None, "")
        accelerator.wait_for_everyone()
        progress.say(f"{name or 'training'}: {recipe.title}, in {folder}")
        if started_before and not run.checkpoints():
            lost = "has lost its checkpoints" if goes_on else "holds a start that ended before its first checkpoint"
            progress.say(f"{folder} {lost}; starting anew")
        with accelerator.local_main_process_first():  # it downloads what is missing
            task = kind.task(recipe, progress.say)
        task.unreadable(on_main_process(task.find_unreadable))
        recipe = _with_used_warmup(recipe, task.samples)
        partly = _partly_trained(task, recipe.training)
        for line in filter(None, [warning, altered, *_changes(asked.training, recipe.training), partly]):
            progress.say(line)
        parameters = sum(parameter.numel() for parameter in task.student.model.parameters())
        config = {"task": kind.name, "headline": task.headline, **task.config, "parameters": parameters}
        config["identity"] = before.get("identity", "") if before else _identity(recipe, config)
        files = DataFiles(folder, [task.train_source, task.eval_source], resumed=bool(before))
        lines = files.compare(recipe.data.hash_data)
        while line := on_main_process(lambda: next(lines, "")):  # one by one, so that no process waits for long
            progress.say(line)
        if before:
            _check_config(before, config, folder)
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            run.write("recipe.json", {"name": name, "task": kind.name, **asdict(recipe)})
            run.write(CONFIG, config)
            files.write()
            run.write("environment.json", environment(accelerator, recipe.training.precision))
        accelerator.wait_for_everyone()
        if recipe.training.tracker:
            accelerator.init_trackers("labelflow", config={key: str(v) for key, v in flat(asdict(recipe))})
        processes = accelerator.num_processes
        progress.say(
            f"{task.samples} training samples of {len(task.classes)} classes, {len(task.eval_source)} to evaluate on, "
            f"{sum(p.numel() for p in task.student.parameters()) / 1e6:.1f} M parameters, "
            f"{processes} {'process' if processes == 1 else 'processes'} on {accelerator.device.type}"
        )
        try:
            metrics = train(task, recipe.training, run, accelerator, progress, config["identity"])
        except Interrupted:  # in all processes; after a failure of a single one there would be no one to wait for
            accelerator.end_training()
            raise
        if last:
            accelerator.end_training()
        else:
            for tracker in accelerator.trackers:
                tracker.finish()
        return metrics


@dataclass(frozen=True)
class LoadedRun(Generic[AnyRecipeType]):
    """A segmenter or detector; a classifier is a `labelflow.classifier.Classifier`."""

    recipe: AnyRecipeType
    classes: list[str]
    model: nn.Module


def load_run(folder: Path | str, weights: str = "best") -> LoadedRun[Any]:
    """The model of a segmenter's or detector's run, in eval mode. weights: best (or last, before the first evaluation),
    last, or a file."""
    run = Run(folder)
    recipe, config = read_any_recipe(run), run.config()
    build = kind_of(recipe).build
    if build is None:
        raise ValueError(f"{folder} is the run of a classifier: load it with labelflow.load")
    return LoadedRun(recipe, config["label_names"], load_exactly(build(recipe, config), run.weights(weights)).eval())


def evaluate_run(folder: Path, weights: str = "best", **changes: Any) -> dict[str, float]:
    """The metrics of a run's model on its own evaluation data, or with other settings (`source="folder"`)."""
    return evaluate_in_detail(folder, weights, **changes).metrics


class InDetail(NamedTuple):
    metrics: dict[str, float]
    classes: Details  # the metrics of each class, where a task has such
    images: int


@flags_restored()
def evaluate_in_detail(folder: Path, weights: str = "best", **changes: Any) -> InDetail:
    """The same, and the metrics of each class."""
    recipe = read_any_recipe(Run(folder))
    kind = kind_of(recipe)
    if unknown := sorted(changes.keys() - set(setting_names(recipe))):
        raise ValueError(f"{folder} is the run of a {kind.what}, which has no {', '.join(unknown)}")
    is_classifier = isinstance(recipe, Recipe)
    if (
        is_classifier
        and Path(changes.get("source", recipe.data.source)).resolve() != Path(recipe.data.source).resolve()
    ):
        # Nothing of other data was trained on; a table may lack some of the classes, if names tell them apart.
        names = Run(folder).config()["label_names"]
        named = {"class_names": tuple(names)} if len(set(names)) == len(names) else {}
        changes = {"val_fraction": 1.0, **named, **changes}
    recipe = recipe.change(**changes)
    loaded = load(folder, weights, changes.get("image_size", 0)) if is_classifier else load_run(folder, weights)
    accelerator = make_accelerator(recipe.training)
    with Progress(quiet=not accelerator.is_main_process) as progress:
        task = kind.evaluation(recipe, progress.say)
        check_classes(list(loaded.classes), list(task.eval_source.classes), f"the data {recipe.data.source}")
        student = accelerator.prepare(kind.student(loaded.model))
        metrics = evaluate(task, student, accelerator, progress.evaluating)
        return InDetail(metrics, task.details(), len(task.eval_source))


def environment(accelerator: Accelerator, precision: str) -> dict[str, Any]:
    return {
        "labelflow": version("labelflow"),
        "python": platform.python_version(),
        **{package.__name__: package.__version__ for package in (torch, torchvision, timm, accelerate)},
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else accelerator.device.type,
        "processes": accelerator.num_processes,
        "precision": precision,
        "threads": torch.get_num_threads(),
        "command": " ".join(sys.argv),
    }


def fitted(recipe: AnyRecipeType) -> AnyRecipeType:
    """With micro-batches that divide the batch among the processes, and a precision that suits the device."""
    training = recipe.training
    micro_batch = fit_micro_batch(training.batch, training.micro_batch, process_count())
    return change(recipe, micro_batch=micro_batch, precision=resolve_precision(training.precision))


def _with_precision_of(run: Run, recipe: AnyRecipeType) -> AnyRecipeType:
    """Where the recipe leaves it open."""
    left_open = recipe.training.precision == "auto"
    return change(recipe, precision=read_any_recipe(run).training.precision) if left_open else recipe


def _with_used_warmup(recipe: AnyRecipe, samples: int) -> AnyRecipe:
    return replace(recipe, training=shorten_warmup(recipe.training, samples // recipe.training.batch))


def _partly_trained(task: Task, training: Training) -> str:
    """What is frozen, in words; ValueError if the model cannot be trained as its settings want it, part by part."""
    parameter_groups(task.student, training)
    return freezing_summary(task.student.model, training, task.samples // training.batch)


def _changes(asked: Training, used: Training) -> Iterator[str]:
    """What was made to fit, in words."""
    if asked.precision == "auto" and used.precision in ("bf16", "fp16"):
        yield f"precision {used.precision}; for float32, choose --precision tf32 or no"
    if used.micro_batch != asked.micro_batch:
        among = f" among {process_count()} processes" if process_count() > 1 else ""
        share = f"a batch of {used.batch}{among}"
        yield f"micro-batches of {used.micro_batch}, since {asked.micro_batch} does not divide {share}"
    if used.warmup_updates != asked.warmup_updates or used.warmup_epochs != asked.warmup_epochs:
        length, unit = (used.warmup_updates, "updates") if used.warmup_updates else (used.warmup_epochs, "epochs")
        yield (
            f"warm-up shortened to a quarter of the run ({unit}: {length})"
            if length
            else "no warm-up in so short a run"
        )


def _identity(recipe: AnyRecipe, config: dict[str, Any]) -> str:
    """Of a run, which its checkpoints carry: a digest of what it was started with."""
    settings = {name: value for name, value in flat(asdict(recipe)) if name not in RESUME_MAY_CHANGE}
    return hashlib.sha256(json.dumps([settings, config], sort_keys=True).encode()).hexdigest()[:16]


def _check_config(before: dict[str, Any], now: dict[str, Any], folder: Path) -> None:
    """Check that the data is the same as when the run was started."""
    check_classes(before["label_names"], now["label_names"], f"the data for {folder}")
    if before["samples"] != now["samples"]:
        raise ValueError(
            f"{folder} was started with {before['samples']} training samples; now there are {now['samples']}"
        )
    unknown = [None, None]  # of runs that were started before labels were recorded, and of other tasks
    pairs = zip(before.get("image_labels", unknown), now.get("image_labels", unknown), strict=True)
    for what, (started, found) in zip(("training", "evaluation"), pairs, strict=True):
        if started is not None and started != found:
            raise ValueError(f"{folder} was started with other labels of its {what} images: they have changed since")
    if before.get("dense_labels", "") != now.get("dense_labels", ""):
        raise ValueError(f"{folder} was started with other dense labels")
    if before.get("teacher", "") != now.get("teacher", ""):
        raise ValueError(f"{folder} was started with another teacher: its weights have changed since")
    if before.get("class_weights", "") != now.get("class_weights", ""):
        raise ValueError(f"{folder} was started with other class weights")


def _check_folder(run: Run, recipe: AnyRecipe, resume: bool, free: Collection[str]) -> tuple[dict[str, Any], str]:
    """Check that the run in a folder can go on with a recipe; returns its config, and what will differ, in words."""
    if not (run / "recipe.json").exists():
        raise ValueError(
            f"{run.folder} holds weights but no recipe.json: they are not a run's, or it has lost it; restore it, or "
            "choose another --out"
        )
    if not resume:
        raise ValueError(f"{run.folder} already contains a run; continue it with --resume, or choose another --out")
    before, config = read_any_recipe(run), run.config()
    if type(before) is not type(recipe):
        raise ValueError(f"{run.folder} is the run of a {kind_of(before).what}; choose another --out")
    used = _with_used_warmup(recipe, config["samples"])
    changed = {name: f"{name} was {before!r}, now {now!r}" for name, before, now in differences(before, used)}
    if refused := [what for name, what in changed.items() if name not in {*free, *RESUME_MAY_ALTER}]:
        raise ValueError(
            f"{run.folder} was started with another recipe ({'; '.join(refused)}); resume with the same settings, or "
            "choose another --out"
        )
    altered = [f"{changed[name]}, so {what}" for name, what in RESUME_MAY_ALTER.items() if name in changed]
    unlike = "; from here on, the run is not the same as one without an interruption"
    return config, "; ".join(altered) + unlike if altered else ""
