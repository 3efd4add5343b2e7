"""The model card of an export, as timm's `generate_readme` takes it."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from timm.models import model_entrypoint

from labelflow.classifier import Classifier, fingerprint
from labelflow.engine.run import BEST, Run
from labelflow.settings import flat
from labelflow.spec import parse
from labelflow.tasks.recipe import Recipe, read_recipe

MANY = 100  # classes that are too many to name
SETTINGS_SHOWN = ("epochs", "batch", "optimizer", "lr", "weight_decay", "drop_path", "image_size", "ema", "seed")


def model_card(classifier: Classifier, usage: str, library: str, repo: str = "") -> dict[str, Any]:
    """Model, data, recipe, method, metrics, classes, and how to load it. No path of this computer is in it."""
    name = parse(classifier.architecture).name
    if library == "timm" and model_entrypoint(name).__module__.startswith("labelflow."):
        usage = f"import labelflow.models  # {name} is not one of timm's own\n{usage}"
    if repo:
        usage = usage.replace("local-dir:.", f"hf-hub:{repo}")
    return {
        "tags": ["image-classification", library, "labelflow"],
        "library_name": library,
        "license": "unknown",
        "description": "An image classifier, exported by labelflow.",
        "details": {"Model": classifier.architecture, **_trained(classifier), **_seen(classifier)},
        "usage": f"{'' if repo else 'In this folder:'}\n\n```python\n{usage}```",
    }


def _seen(classifier: Classifier) -> dict[str, Any]:
    """How it sees images, and what it finds in them."""
    classes = [classifier.class_name(column) for column in range(len(classifier.classes))]
    names = ", ".join(classes) if len(classes) <= MANY else f"{', '.join(classes[:10])}, …"
    return {"Preprocessing": classifier.preprocessing.cfg, "Classes": f"{len(classes)}: {names}"}


def _trained(classifier: Classifier) -> dict[str, Any]:
    """What is known of a run."""
    if classifier.folder is None:
        return {}
    run = Run(classifier.folder)
    recipe, samples = read_recipe(run), run.config()["samples"]
    return {
        "Data": f"{Path(recipe.data.source).name}, {samples:,} training images",
        "Recipe": {"name": run.read("recipe.json")["name"] or "its own", **_settings(recipe)},
        "Method": {"mixer": recipe.mixer, "target": recipe.target, "smoothing": recipe.smoothing},
        **({"Metrics": metrics} if (metrics := _metrics(run, classifier.weights)) else {}),
    }


def _settings(recipe: Recipe) -> dict[str, Any]:
    settings = dict(flat(asdict(recipe)))
    init = {"initial weights": Path(recipe.init).name} if recipe.init else {}
    return init | {name.replace("_", " "): settings[name] for name in SETTINGS_SHOWN}


def _metrics(run: Run, weights: str) -> dict[str, str]:
    """Of the best weights, where they were evaluated."""
    evaluations = [line for line in run.metrics() if line["kind"] == "eval"]
    if not evaluations or not (run / BEST).exists() or weights != fingerprint(run / BEST):
        return {}
    prefix = "ema_" if "ema_top1" in evaluations[-1] else ""
    best = max(evaluations, key=lambda line: line[f"{prefix}top1"])
    shown = {"top-1": "top1", "top-5": "top5"} if run.config()["num_classes"] > 5 else {"top-1": "top1"}
    return {
        **{name: f"{best[f'{prefix}{key}']:.2f} %" for name, key in shown.items()},
        "loss": f"{best[f'{prefix}loss']:.4f}",
        "epoch": f"{best['epoch']:g}, chosen as the best of {len(evaluations)} evaluations on these same images",
    }
