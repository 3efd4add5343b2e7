"""`labelflow robust`: the robustness of models, side by side."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import OmitArgPrefixes, Positional, arg

from labelflow.arguments import flag
from labelflow.data.settings import Data
from labelflow.robust.settings import Settings
from labelflow.robust.suites import SUITES, choose_suites

if TYPE_CHECKING:
    import torch

    from labelflow.classifier import Classifier
    from labelflow.robust.datasets import ImageSet
    from labelflow.robust.evaluator import Evaluator
    from labelflow.robust.results import Section


@dataclass(frozen=True)
class Robust:
    """The models, the images and the suites."""

    models: Annotated[Positional[tuple[str, ...]], arg(metavar="RUN|MODEL …")]
    """Runs' folders, and timm models, which may name their weights: resnet50, resnet50=packaged, resnet50=my.pth."""
    suite: Annotated[str, arg(help=f"Comma-separated suites: {', '.join(SUITES)}. Default: all that have images.")] = ""
    data: str = ""
    """Images to evaluate on: a folder (val/CLASS/…, CLASS/…, or labels.csv), or world, torch/NAME, hfds/NAME. Default:
    the validation split of the runs."""
    out: Path = Path("robust")
    """Folder for the results and the cached predictions."""
    weights: str = ""
    """Of timm models: pretrained (the default), packaged (from a package), or a checkpoint file; of runs: best (the
    default), last, or a file."""
    image_size: int = 0
    """Evaluate all models at this size; 0: the size of each model's preprocessing."""
    samples: int = 0
    """Evaluate a random sample of so many images of each data set; 0: all."""
    seed: int = 0
    """Of samples, corruptions, occlusion, shuffling and attacks."""
    batch: int = 0
    """Images in a batch; 0: 64, or as few as are fastest on a CPU."""
    workers: int = -1
    """Processes that load images; -1: one for each core, at most 8."""
    precision: Literal["no", "bf16", "fp16"] = "no"
    """Mixed precision; attacks always run in float32."""
    skip_unreadable: int = 0
    """Leave out up to so many unreadable images instead of stopping."""
    root: str = ""
    """Where torchvision and Hugging Face store their files. Default: that of the runs, or data."""
    as_json: bool = False
    """Print JSON instead of a table."""
    settings: Annotated[Settings, OmitArgPrefixes, arg(name="")] = field(default_factory=Settings)

    def __post_init__(self) -> None:
        for name, least in (("samples", 0), ("batch", 0), ("image_size", 0), ("seed", 0), ("workers", -1)):
            if getattr(self, name) < least:
                raise ValueError(f"{flag(name)} must be at least {least}, not {getattr(self, name)}")


def robust(options: Annotated[Robust, OmitArgPrefixes, arg(name="")]) -> None:
    """Evaluate models side by side: natural shifts, corruptions, attacks, occlusion, shuffling, calibration.

    Args:
        options: The models, the images and the suites.
    """
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise ValueError("labelflow robust runs in one process; start it without torchrun or accelerate launch")
    import torch

    from labelflow.robust.evaluator import Evaluator

    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    device = device or torch.device("cpu")
    models, dataset = _open(options, device)
    evaluator = Evaluator(
        models,
        options.out / "predictions",
        device,
        seed=options.seed,
        samples=options.samples,
        batch=options.batch,
        workers=options.workers,
        precision=options.precision,
        skip_unreadable=options.skip_unreadable,
        quiet=options.as_json,
    )
    dataset = dataset and evaluator.subsample(dataset)
    names = choose_suites(options.suite, dataset, options.settings)
    suites = [SUITES[name](evaluator, dataset, options.settings) for name in names]  # checks all settings
    try:
        evaluator.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write to --out {options.out}: {error.strerror}") from None
    if not options.as_json:
        costs = ", ".join(f"{name} {suite.passes:,}" for name, suite in zip(names, suites, strict=True))
        print(f"forward passes, at most: {costs}. Predictions are cached in {evaluator.folder}")
    sections: list[Section] = []
    try:
        for suite in suites:
            sections.append(suite.measure())
            _write(options, models, sections)  # attacks may take hours; the page shows what is done
    except KeyboardInterrupt:
        page = f"; {options.out / 'robust.html'} has {', '.join(names[: len(sections)])}" if sections else ""
        print(f"labelflow: interrupted{page}. Run the same command again to resume", file=sys.stderr)
        raise SystemExit(130) from None
    _print(options, evaluator, sections)


def _open(options: Robust, device: "torch.device") -> "tuple[list[Classifier], ImageSet | None]":
    """The models, and the images that they are evaluated on."""
    from labelflow.classifier import wordnet_names
    from labelflow.robust.datasets import open_dataset, open_folder
    from labelflow.robust.models import evaluation_data, load_models

    folder = Path(options.data)
    classes: tuple[str, ...] = ()  # of the data, if it can be read without a model
    if options.data and folder.is_dir() and not (folder / "labels.csv").exists():
        classes = tuple(open_folder(folder).classes)
    models = load_models(
        options.models,
        device,
        weights=options.weights,
        image_size=options.image_size,
        classes=classes,
    )
    runs_data = evaluation_data(models)
    if options.suite.strip() == "natural" or not (options.data or runs_data):
        return models, None
    data = runs_data or Data()
    data = replace(data, source=options.data or data.source, root=options.root or data.root)
    from_run = runs_data is not None and _same(data.source, runs_data.source)
    data = replace(data, image_size=max(model.preprocessing.size for model in models))
    dataset = open_dataset(data, from_run, wordnet_names(models[0].classes))
    for model in models:
        model.columns(dataset.classes)  # raises if it lacks some
    return models, dataset


def _same(one: str, other: str) -> bool:
    """Two names of the same data: a path may be written in several ways."""
    return one == other or (Path(one).is_dir() and Path(one).resolve() == Path(other).resolve())


def _as_json(options: Robust, models: "Sequence[Classifier]", sections: "Sequence[Section]") -> dict[str, Any]:
    from labelflow.robust.results import as_json

    return as_json(models, sections, {**asdict(options), "out": str(options.out)})


def _write(options: Robust, models: "Sequence[Classifier]", sections: "Sequence[Section]") -> None:
    from labelflow.robust.page import write_page, write_svg
    from labelflow.robust.results import write_json

    write_json(options.out / "robust.json", _as_json(options, models, sections))
    facts = [
        f"{model.name}: {model.architecture} at {model.preprocessing.size} px, {model.weights}" for model in models
    ]
    write_page(options.out / "robust.html", models, sections, facts)
    charts = [chart for section in sections for chart in section.charts]
    if charts:
        write_svg(options.out / "robust.svg", [model.name for model in models], charts)


def _print(options: Robust, evaluator: "Evaluator", sections: "list[Section]") -> None:
    from labelflow.robust.results import print_table

    if options.as_json:
        print(json.dumps(_as_json(options, evaluator.models, sections)))
        return
    print_table(evaluator.models, sections)
    attacks = f", {evaluator.attack_passes:,} forward passes of attacks" if evaluator.attack_passes else ""
    cached = f", {evaluator.cached:,} from the cache" if evaluator.cached else ""
    print(f"\n{evaluator.evaluated:,} images evaluated{attacks}{cached}")
    print(f"  look at it     {options.out / 'robust.html'}")
