"""From models, images and suites to the results of `labelflow robust`, on disk and as an object."""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import OmitArgPrefixes, Positional, arg

from labelflow.arguments import flag
from labelflow.data.settings import Data
from labelflow.html.notebook import Page
from labelflow.process import process_count
from labelflow.robustness.settings import Settings
from labelflow.robustness.suites import SUITES, Suite, choose_suites

if TYPE_CHECKING:
    import torch

    from labelflow.classifier import Classifier
    from labelflow.robustness.datasets import ImageSet
    from labelflow.robustness.evaluator import Evaluator
    from labelflow.robustness.results import Section


@dataclass(frozen=True)
class Robust:
    """The models, the images and the suites."""

    models: Annotated[Positional[tuple[str, ...]], arg(metavar="RUN|MODEL …")]
    """Runs' folders, and timm models, which may name their weights: resnet50, resnet50=packaged, resnet50=my.pth."""
    suite: Annotated[str, arg(help=f"Comma-separated suites: {', '.join(SUITES)}. Default: all that have images.")] = ""
    data: str = ""
    """Images to evaluate on: a folder (val/CLASS/…, CLASS/…, or labels.csv), a table (.csv, .parquet; its columns
    as the runs' data), or world, torch/NAME, hfds/NAME. Default: the validation split of the runs."""
    out: Path = Path("robust")
    """Folder for the results and the cached predictions."""
    weights: str = ""
    """Of timm models: pretrained (the default), packaged (from a package), or a checkpoint file; of runs: best (the
    default), last, or a file."""
    image_size: int = 0
    """Evaluate all models at this size; 0: the size of each model's preprocessing."""
    samples: int = 0
    """Evaluate a random sample of this many images of each data set; 0: all."""
    seed: int = 0
    """Of samples, corruptions, occlusion, shuffling and attacks."""
    batch: int = 0
    """Images in a batch; 0: 64, or as few as are fastest on a CPU."""
    workers: int = -1
    """Processes that load images; -1: one for each core, at most 8."""
    precision: Literal["no", "bf16", "fp16"] = "no"
    """Mixed precision; attacks always run in float32."""
    skip_unreadable: int = 0
    """Leave out up to this many unreadable images instead of stopping."""
    root: str = ""
    """Where torchvision and Hugging Face store their files. Default: that of the runs, or data."""
    settings: Annotated[Settings, OmitArgPrefixes, arg(name="")] = field(default_factory=Settings)

    def __post_init__(self) -> None:
        for name, least in (("samples", 0), ("batch", 0), ("image_size", 0), ("seed", 0), ("workers", -1)):
            if getattr(self, name) < least:
                raise ValueError(f"{flag(name)} must be at least {least}, not {getattr(self, name)}")


@dataclass(repr=False)
class Robustness(Page):
    """What suites found, for all models side by side; complete when all suites have been measured."""

    options: Robust
    evaluator: "Evaluator"
    suites: dict[str, Suite]  # those that were chosen
    sections: "list[Section]" = field(default_factory=list)  # those that have been measured

    @property
    def folder(self) -> Path:
        return self.options.out

    @property
    def page(self) -> Path:
        return self.folder / "robust.html"

    @property
    def records(self) -> list[dict[str, Any]]:
        """A row for each metric, a column for each model."""
        names = [model.name for model in self.evaluator.models]
        return [
            {"suite": section.name, "metric": metric.title, **dict(zip(names, map(float, metric.values), strict=True))}
            for section in self.sections
            for metric in section.metrics
        ]

    def as_json(self) -> dict[str, Any]:
        """Everything that was measured, and how."""
        from labelflow.robustness.results import as_json

        settings = {**asdict(self.options), "out": str(self.options.out)}
        return as_json(self.evaluator.models, self.sections, settings)

    def measure(self) -> None:
        """Suite by suite; attacks may take hours, and the page shows what is done."""
        self.sections.clear()
        for suite in self.suites.values():
            self.sections.append(suite.measure())
            self._write()

    def _write(self) -> None:
        from labelflow.robustness.page import write_page, write_svg
        from labelflow.robustness.results import write_json

        models = self.evaluator.models
        write_json(self.folder / "robust.json", self.as_json())
        facts = [
            f"{model.name}: {model.architecture} at {model.preprocessing.size} px, {model.weights}" for model in models
        ]
        write_page(self.page, models, self.sections, facts)
        charts = [chart for section in self.sections for chart in section.charts]
        if charts:
            write_svg(self.folder / "robust.svg", [model.name for model in models], charts)


def prepare(options: Robust, quiet: bool = False) -> Robustness:
    """Models, images and suites, all checked; nothing is measured yet."""
    if process_count() > 1:
        raise ValueError("labelflow robust runs in one process; start it without torchrun or accelerate launch")
    from labelflow.engine.setup import best_device
    from labelflow.robustness.evaluator import Evaluator

    device = best_device()
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
        quiet=quiet,
    )
    dataset = dataset and evaluator.subsample(dataset)
    names = choose_suites(options.suite, dataset, options.settings)
    suites = {name: SUITES[name](evaluator, dataset, options.settings) for name in names}
    try:
        evaluator.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write to --out {options.out}: {error.strerror}") from None
    return Robustness(options, evaluator, suites)


def _open(options: Robust, device: "torch.device") -> "tuple[list[Classifier], ImageSet | None]":
    """The models, and the images that they are evaluated on."""
    from labelflow.classifier import wordnet_names
    from labelflow.robustness.datasets import open_dataset, open_folder
    from labelflow.robustness.models import check_labels, evaluation_data, load_models

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
        check_labels(model, dataset)
    return models, dataset


def _same(one: str, other: str) -> bool:
    """Two names of the same data: a path may be written in several ways."""
    return one == other or (Path(one).exists() and Path(one).resolve() == Path(other).resolve())
