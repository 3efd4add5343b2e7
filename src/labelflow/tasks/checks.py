"""What all tasks check before anything is written."""

from pathlib import Path

import timm

from labelflow.engine import Run, Training
from labelflow.engine.optim import check_optimizer
from labelflow.engine.run import CONFIG
from labelflow.spec import parse
from labelflow.targets import Plain, Target
from labelflow.tasks.recipe import Recipe

Colours = tuple[float, ...]  # of red, green and blue


def check_threshold(recipe: Recipe, target: Target) -> None:
    """A loss that makes every label 0 or 1 leaves nothing of shares, and dense labels name every class a little."""
    threshold = parse(recipe.loss).arguments.get("threshold")
    if threshold is not None and not isinstance(getattr(target, "target", target), Plain):
        raise ValueError(
            f"--loss {recipe.loss} makes every label 0 or 1, so the target {recipe.target} would make no difference, "
            "or a wrong one: --loss bce keeps labels as they are"
        )


def check_training(training: Training, samples: int) -> None:
    """Check the settings before anything is written."""
    check_optimizer(training)
    if samples < training.batch:
        raise ValueError(
            f"a batch of {training.batch} is larger than the {samples} training samples; choose a smaller --batch"
        )


def check_colours(name: str, init: str, mean: Colours, std: Colours) -> None:
    """timm's weights expect their own normalization."""
    cfg = timm.get_pretrained_cfg(name) if timm.is_model(name) else None
    if cfg is not None and init in ("pretrained", "packaged") and (tuple(cfg.mean), tuple(cfg.std)) != (mean, std):
        wanted_mean, wanted_std = (" ".join(map(str, values)) for values in (cfg.mean, cfg.std))
        raise ValueError(
            f"timm's weights of {name} expect a different normalization: --mean {wanted_mean} --std {wanted_std}"
        )


def check_run_colours(init: str, mean: Colours, std: Colours) -> None:
    """A run's model knows images that were normalised in its way."""
    if not init or not Path(init).is_dir():
        return
    used = Run(init).read("recipe.json")["data"]
    if (tuple(used["mean"]), tuple(used["std"])) != (mean, std):
        mean_used, std_used = (" ".join(map(str, used[name])) for name in ("mean", "std"))
        raise ValueError(f"{init} was trained with another mean or std: use --mean {mean_used} --std {std_used}")


def check_classifier(folder: str) -> None:
    """Check that a run to initialise from is a classifier's."""
    is_run = folder and (Path(folder) / CONFIG).exists()
    if is_run and Run(folder).config().get("task", "classify") != "classify":
        raise ValueError(f"{folder} is the run of a segmenter or detector; only a classifier's weights can be used")


def weights_file(init: str) -> str:
    """Of a run's folder, its best weights."""
    return str(Run(init).weights()) if init and Path(init).is_dir() else init


def check_two_classes(classes: list[str], source: str) -> None:
    if len(classes) < 2:
        raise ValueError(
            f"{source} has one class, {classes[0]!r}; a classifier needs at least two: put the images of each into a "
            "folder of its own"
        )


def check_classes(expected: list[str], found: list[str], what: str) -> None:
    if expected != found:
        differing = [f"{a!r} and {b!r}" for a, b in zip(expected, found, strict=False) if a != b][:3]
        raise ValueError(
            f"{what} has different classes"
            + (f": {len(found)} instead of {len(expected)}" if len(found) != len(expected) else "")
            + (f"; {', '.join(differing)} are at the same index" if differing else "")
        )
