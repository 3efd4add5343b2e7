"""The words of the command line in Python: `train`, `annotate`, `compare`, `robust`. Each returns an object that a
notebook shows as a page, and that has its numbers as rows and as a data frame.

    run = labelflow.train("small_vit_tl_align", data="my/photos", epochs=20)
    run.metrics["top1"], run.classifier.predict("a.jpg")
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from labelflow.classifier import Classifier, load
from labelflow.comparison.run import Comparison, run_comparison
from labelflow.comparison.settings import Compare
from labelflow.engine import Run
from labelflow.html import Page
from labelflow.labels import Store
from labelflow.labels.settings import Annotate
from labelflow.process import is_main_process
from labelflow.recipes import find_any
from labelflow.report import write_report
from labelflow.robustness.run import Robust, Robustness, prepare
from labelflow.settings import change, setting_names
from labelflow.spec import known
from labelflow.tasks import AnyRecipe, Recipe, annotate_data, train_run
from labelflow.tasks.recipe import UNITS, headline_of, kind_of

AnyPath = Path | str


@dataclass(frozen=True, repr=False)
class TrainedRun(Page):
    """A run in its folder, trained to its end."""

    folder: Path
    metrics: dict[str, float]  # of the last evaluation

    @property
    def page(self) -> Path:
        return self.folder / "report.html"

    @property
    def best(self) -> dict[str, Any]:
        """The evaluation of the best weights, which `classifier`, `labelflow predict` and `labelflow eval` use."""
        return max((line for line in self.records if line["kind"] == "eval"), key=self.reached)

    def reached(self, metrics: dict[str, Any]) -> float:
        """Of an evaluation's metrics the one that counts: of the average of the weights, where there is one."""
        headline = headline_of(Run(self.folder))
        value: float = metrics.get(f"ema_{headline}", metrics[headline])
        return value

    @property
    def unit(self) -> str:
        """Of the metric that counts."""
        return UNITS[headline_of(Run(self.folder))]

    @cached_property
    def classifier(self) -> Classifier:
        """The best weights, and how they see images."""
        return load(self.folder)

    @property
    def records(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl: training and evaluations."""
        return Run(self.folder).metrics()


def train(
    recipe: str | AnyRecipe,
    *,
    data: AnyPath | None = None,
    out: AnyPath | None = None,
    resume: bool = False,
    quiet: bool = False,
    name: str = "",
    **settings: Any,
) -> TrainedRun:
    """Train a recipe, by its name in `labelflow list` or as an object, with other settings.

    out: the folder of the run; runs/NAME by default. resume: continue the run in that folder, if there is one.
    """
    name, chosen = _recipe(name, recipe, data, settings)
    folder = Path(out or Path("runs") / name)
    metrics = train_run(chosen, folder, resume, name, quiet)
    if is_main_process():
        write_report(folder)
    return TrainedRun(folder, metrics)


def compare(
    recipe: str | Recipe,
    methods: Sequence[str] = ("cutmix", "tl_align"),
    *,
    data: AnyPath | None = None,
    out: AnyPath | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    quiet: bool = False,
    **settings: Any,
) -> Comparison:
    """Train a recipe under several methods and seeds. Finished cells of the same folder are not trained again.

    methods: the baseline first. out: the folder; compare/NAME by default. settings: of the recipe, and of the
    comparison: jobs (how many cells are trained at once), speed_rounds, any_code, table_only, join.
    """
    of_comparison = ("jobs", "speed_rounds", "any_code", "table_only", "join")
    own = {name: settings.pop(name) for name in of_comparison if name in settings}
    name, chosen = _recipe("", recipe, data, settings)
    start = Compare(("cutmix", "tl_align"), chosen, Path(out or Path("compare") / name))
    seeds = list(seeds) if isinstance(seeds, range) else seeds
    made = run_comparison(name, change(start, methods=methods, seeds=seeds, **own), quiet)
    if made.failed:
        raise ValueError(made.failures)
    return made


def annotate(
    data: AnyPath, model: str | Path, out: AnyPath, *, resume: bool = False, quiet: bool = False, **settings: Any
) -> Store:
    """Dense labels of a data set from a trained classifier: a run's folder or a timm model."""
    options = Annotate(model=str(model), out=Path(out), resume=resume)
    return annotate_data(str(data), change(options, **settings), quiet)


def robust(
    models: AnyPath | Sequence[AnyPath],
    *,
    data: AnyPath = "",
    suite: str | Sequence[str] = "",
    out: AnyPath = "robust",
    quiet: bool = False,
    **settings: Any,
) -> Robustness:
    """How robust models are, side by side: runs' folders and timm models.

    suite: clean, corruptions, attack, …; by default all that have images.
    """
    names = [models] if isinstance(models, str | Path) else models
    suites = suite if isinstance(suite, str) else ",".join(suite)
    options = Robust(tuple(map(str, names)), suites, str(data), Path(out))
    found = prepare(change(options, **settings), quiet)
    found.measure()
    return found


def _recipe(name: str, recipe: Any, data: AnyPath | None, settings: dict[str, Any]) -> tuple[str, Any]:
    """The name of a recipe, and the recipe with other settings."""
    if isinstance(recipe, str):
        name, recipe = name or recipe, find_any(recipe).recipe
    if not isinstance(recipe, AnyRecipe):
        raise ValueError(f"a recipe is a name that labelflow list shows, or a Recipe, not {recipe!r}")
    for setting in settings:
        known(setting, {*setting_names(recipe), "data"}, "setting", "--help")
    if data is not None:
        if "source" in settings:
            raise ValueError("data and source are the same setting; give one of them")
        settings = {**settings, "source": str(data)}
    return name or kind_of(recipe).name, change(recipe, **settings)
