"""Runs on disk: start or resume one, and load a finished one."""

import platform
import sys
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import accelerate
import timm
import torch
import torchvision
from accelerate import Accelerator
from PIL import Image
from torch import nn

from labelflow.align import Student
from labelflow.data import Data, check_groups, eval_transform
from labelflow.engine import Interrupted, Run, Training, evaluate, make_accelerator, train
from labelflow.engine.progress import Progress
from labelflow.models.create import create, load_exactly
from labelflow.tasks.classify import Classification, Evaluation, Recipe, check_classes, weights_file

# What may change when a run goes on: it changes what is kept and shown, not what is computed.
FREE = {"workers", "skip_unreadable", "save_updates", "keep", "log_updates", "tracker", "eval_batch"}


def train_run(
    recipe: Recipe,
    folder: Path,
    resume: bool,
    name: str = "",
    quiet: bool = False,
    free: Collection[str] = FREE,
    last: bool = True,
) -> dict[str, float]:
    """Train a recipe in a folder; returns the metrics of the last evaluation.

    free: settings that may have changed since the run began. last: whether launched processes part afterwards.
    """
    accelerator = make_accelerator(recipe.training, folder)
    run = Run(folder)
    check_groups(recipe.training.batch, recipe.training.group, accelerator.num_processes)
    _check_folder(run, recipe, resume, free)
    accelerator.wait_for_everyone()
    with Progress(quiet=quiet or not accelerator.is_main_process) as progress:
        progress.say(f"{name or 'training'}: {recipe.model}, {recipe.mixer}, {recipe.target}, in {folder}")
        with accelerator.local_main_process_first():  # which downloads what is not there
            task = Classification(recipe, progress.say)
        parameters = sum(parameter.numel() for parameter in task.student.model.parameters())
        card = {
            **task.card,
            "samples": task.samples,
            "labels": task.labels,
            "parameters": parameters,
            "guide_parameters": task.mixing.parameters,
        }
        if (run / "model.json").exists():
            before = run.read("model.json")
            check_classes(before["classes"], task.classes, f"the data for {folder}")
            if before["samples"] != task.samples:
                raise ValueError(
                    f"{folder} began with {before['samples']} training samples; now there are {task.samples}"
                )
            if before.get("labels", "") != task.labels:
                raise ValueError(f"{folder} began with other dense labels than {recipe.data.labels} holds now")
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            folder.mkdir(parents=True, exist_ok=True)
            run.write("recipe.json", {"name": name, **asdict(recipe)})
            run.write("model.json", card)
            run.write("environment.json", environment(accelerator))
        accelerator.wait_for_everyone()
        if recipe.training.tracker:
            accelerator.init_trackers("labelflow", config={key: str(v) for key, v in flat(asdict(recipe))})
        progress.say(
            f"{task.samples} training samples of {len(task.classes)} classes, "
            f"{sum(p.numel() for p in task.student.parameters()) / 1e6:.1f} M parameters, "
            f"{accelerator.num_processes} process{'es' * (accelerator.num_processes > 1)} on {accelerator.device.type}"
        )
        try:
            metrics = train(task, recipe.training, run, accelerator, progress)
        except Interrupted:  # in all processes; where one fails alone, the others must not be waited for
            accelerator.end_training()
            raise
        if last:
            accelerator.end_training()
        else:
            for tracker in accelerator.trackers:
                tracker.finish()
        return metrics


@dataclass(frozen=True)
class Loaded:
    """A run as it can be used."""

    recipe: Recipe
    classes: list[str]
    model: nn.Module


def load_run(folder: Path | str, weights: str = "best", image_size: int = 0) -> Loaded:
    """The model of a run, in eval mode. weights: best (or last, before the first evaluation), last, or a file."""
    run = Run(folder)
    recipe, card = read_recipe(run), run.read("model.json")
    known = {"best": weights_file(str(folder)), "last": str(run / "last.safetensors")}
    file, arguments = known.get(weights, weights), card["arguments"]
    if image_size and image_size != arguments.get("img_size", image_size):  # timm interpolates what depends on it
        model = create(card["model"], start=file, **{**arguments, "img_size": image_size})
    else:
        model = load_exactly(create(card["model"], **arguments), file)
    return Loaded(recipe, card["classes"], model.eval())


def read_recipe(run: Run) -> Recipe:
    values = run.read("recipe.json")
    try:
        seen: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in values["data"].items()}
        own = {one.name: values[one.name] for one in fields(Recipe) if one.name not in ("data", "training")}
        return Recipe(**own, data=Data(**seen), training=Training(**values["training"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{run / 'recipe.json'} was written by another version of labelflow: {error}") from None


def evaluate_run(folder: Path, weights: str = "best", **changes: Any) -> dict[str, float]:
    """The metrics of a run's model on its own evaluation data, or with other settings of Data (`data="folder"`)."""
    loaded = load_run(folder, weights, changes.get("image_size", 0))
    training = loaded.recipe.training
    accelerator = make_accelerator(training)
    with Progress(quiet=not accelerator.is_main_process) as progress:
        data = replace(loaded.recipe.data, **changes)
        task = Evaluation(data, training.eval_batch or training.group, progress.say)
        check_classes(loaded.classes, list(task.eval_source.classes), f"the data {data.data}")
        return evaluate(task, accelerator.prepare(Student(loaded.model)), accelerator, progress.evaluating)


@torch.no_grad()
def predict(loaded: Loaded, images: list[Image.Image], top: int = 5) -> list[list[tuple[str, float]]]:
    """The likeliest classes of each image, with their probabilities."""
    transform = eval_transform(loaded.recipe.data)
    logits = loaded.model(torch.stack([transform(image) for image in images]))
    values, places = logits.softmax(1).topk(min(top, len(loaded.classes)))
    return [
        [(loaded.classes[place], value) for place, value in zip(*row, strict=True)]
        for row in zip(places.tolist(), values.tolist(), strict=True)
    ]


def differences(one: Any, other: Any) -> Iterator[tuple[str, Any, Any]]:
    """Where two recipes differ: name, one's value, the other's."""
    second = dict(flat(asdict(other)))
    for name, value in flat(asdict(one)):
        if second[name] != value:
            yield name, value, second[name]


def flat(values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The settings of a recipe and of its parts, under their own names."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flat(value)
        else:
            yield name, value


def environment(accelerator: Accelerator) -> dict[str, Any]:
    return {
        "labelflow": version("labelflow"),
        "python": platform.python_version(),
        **{package.__name__: package.__version__ for package in (torch, torchvision, timm, accelerate)},
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else accelerator.device.type,
        "processes": accelerator.num_processes,
        "precision": accelerator.mixed_precision,
        "threads": torch.get_num_threads(),
        "command": " ".join(sys.argv),
    }


def _check_folder(run: Run, recipe: Recipe, resume: bool, free: Collection[str]) -> None:
    if not (run / "recipe.json").exists():
        return
    if not resume:
        raise ValueError(f"{run.folder} holds a run already; go on with --resume, or choose another --out")
    changed = [change for change in differences(read_recipe(run), recipe) if change[0] not in free]
    if changed:
        told = "; ".join(f"{name} was {before!r}, now {now!r}" for name, before, now in changed)
        raise ValueError(
            f"{run.folder} began with another recipe ({told}); resume it as it was, or choose another --out"
        )
