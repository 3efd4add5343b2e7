"""Cells of a comparison: one method, one seed, an ordinary run. The result of a cell is a small JSON file.

OUT/cells/METHOD-SEED-KEY.json   a finished cell, all that the table needs
OUT/runs/METHOD-SEED-KEY/        its run
"""

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import timm
import torch
import torchvision

import labelflow
from labelflow.classifier import load
from labelflow.data import Shards, Stream, open_source
from labelflow.data.folder import Folder
from labelflow.data.table import Table
from labelflow.engine import Details
from labelflow.engine.run import DETAILS, Run
from labelflow.files import read_sealed, write_sealed
from labelflow.labels import Store
from labelflow.layers import is_compute
from labelflow.process import is_main_process
from labelflow.recipes.methods import Method
from labelflow.settings import flat
from labelflow.spec import split as split_outside
from labelflow.tasks import Recipe, train_run
from labelflow.tasks.checks import weights_file
from labelflow.tasks.recipe import UNITS, read_recipe
from labelflow.tasks.runs import RESUME_MAY_CHANGE, fitted

Result = dict[str, Any]  # the content of a cell's file

Finish = Callable[
    ["Cell", Path, Result], Result
]  # from a cell, the folder of its run and its result to a fuller result

# Paths: a key depends on the content of the files, not on where they are.
PLACES = {"source", "root", "labels", "init", "teacher", "class_weights"}


@dataclass(frozen=True)
class Cell:
    method: str
    recipe: Recipe  # in full, with its seed
    data: str  # digests of the samples, the dense labels and the initial weights
    code: str  # the version, and a digest of the code

    @property
    def seed(self) -> int:
        return self.recipe.training.seed

    @property
    def key(self) -> str:
        """A digest of all that decides the cell's numbers, but not of paths."""
        settings = {name: value for name, value in flat(asdict(self.recipe)) if name not in RESUME_MAY_CHANGE | PLACES}
        return _digest(json.dumps([settings, self.data, self.code], sort_keys=True))

    @property
    def name(self) -> str:
        return f"{self.method}-{self.seed}-{self.key}"

    def file(self, out: Path) -> Path:
        return out / "cells" / f"{self.name}.json"

    def run(self, out: Path) -> Path:
        return out / "runs" / self.name

    def finished(self, out: Path) -> Result | None:
        """Its result, if it has been trained."""
        return read_result(self.file(out)) if self.file(out).exists() else None

    def finished_by_other_code(self, out: Path) -> Result | None:
        """The newest result of the same cell by another version of the code."""
        paths = sorted(
            (out / "cells").glob(f"{self.method}-{self.seed}-*.json"), key=lambda path: -path.stat().st_mtime
        )
        results = map(read_result, paths)
        return next((result for result in results if replace(self, code=result["code"]).key == result["key"]), None)


def read_result(path: Path) -> Result:
    again = "remove it to train the cell again"
    result = read_sealed(path, again)
    if missing := {"method", "seed", "key", "code", "metrics"} - result.keys():
        raise ValueError(f"{path} is damaged: it has no {', '.join(sorted(missing))}; {again}")
    if path.stem != (name := f"{result['method']}-{result['seed']}-{result['key']}"):
        raise ValueError(f"{path} is damaged: it holds the result of {name}; {again}")
    return result


def make_cells(
    recipe: Recipe, methods: list[Method], seeds: tuple[int, ...], tell: Callable[[str], None] = lambda line: None
) -> list[Cell]:
    """Seed by seed, so that all methods have equally many seeds if time runs out."""
    files = [init_digest(recipe.init), init_digest(recipe.class_weights)]
    data, code = " ".join([data_digest(recipe, tell), *files]).strip(), code_version()
    resolved = {method.name: method.of(recipe) for method in methods}
    labels = Store(recipe.data.labels).checksum if any(own.data.labels for own in resolved.values()) else ""
    teacher = load(recipe.teacher).key if any(own.teacher for own in resolved.values()) else ""
    return [
        Cell(
            name,
            fitted(own.change(seed=seed)),
            " ".join([data, *([labels] if own.data.labels else []), *([teacher] if own.teacher else [])]),
            code,
        )
        for seed in seeds
        for name, own in resolved.items()
    ]


def run_cell(cell: Cell, out: Path, quiet: bool = False, last: bool = True, finish: Finish | None = None) -> Result:
    """Train it, or resume it, and write its result."""
    started = time.perf_counter()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    metrics = train_run(cell.recipe, cell.run(out), True, cell.name, quiet, free=RESUME_MAY_CHANGE | PLACES, last=last)
    run = Run(cell.run(out))
    lines = run.metrics()
    config, environment = run.config(), run.read("environment.json")
    result = {
        "method": cell.method,
        "seed": cell.seed,
        "key": cell.key,
        "code": cell.code,
        "data": cell.data,
        "samples": config["samples"],
        "val_samples": len(open_source(cell.recipe.data, "val")),
        "metrics": metrics,
        "class_scores": class_scores(run.read(DETAILS)),
        "curve": [[line["epoch"], line[headline(line)]] for line in lines if line["kind"] == "eval"],
        "images_per_second": median([line["images_per_second"] for line in lines if line["kind"] == "train"]),
        "seconds": round(sum(cell_seconds(cell, lines)) or time.perf_counter() - started, 1),
        "peak_memory": peak_memory(),
        "parameters": config["parameters"],
        "guide_parameters": config["guide_parameters"],
        "recipe": asdict(_without_paths(read_recipe(run))),
        "environment": {name: value for name, value in environment.items() if name != "command"},
    }
    result = finish(cell, cell.run(out), result) if finish else result
    result = json.loads(json.dumps(result))  # as it will be read
    if is_main_process():
        cell.file(out).parent.mkdir(parents=True, exist_ok=True)
        write_sealed(cell.file(out), result)
    return result


def _without_paths(recipe: Recipe) -> Recipe:
    names = {name: Path(getattr(recipe.data, name)).name for name in ("source", "root", "labels")}
    files = {name: Path(getattr(recipe, name)).name for name in ("init", "class_weights")}
    model, *weights = split_outside(recipe.teacher, "=")
    files["teacher"] = "=".join(Path(part).name for part in (model, *weights))
    return recipe.change(**names, **files)


def cell_seconds(cell: Cell, lines: list[dict[str, Any]]) -> Iterator[float]:
    """Training time, from its metrics: interruptions and evaluations do not count."""
    before = 0
    for line in lines:
        if line["kind"] == "train":
            yield (line["update"] - before) * cell.recipe.training.batch / line["images_per_second"]
            before = line["update"]


def class_scores(details: Details) -> list[float]:
    """How well each class is recognised, where that is defined: its recall or, of several labels, its AP."""
    scores = (next(iter(own.values())) for own in details.values())
    return [score for score in scores if score is not None]


def metric_of(result: Result) -> str:
    """The metric to compare, top1 or map, be it the EMA's or not."""
    return headline(result["metrics"]).removeprefix("ema_")


def told(result: Result) -> str:
    """A cell's result in words: 71.3 % top-1"""
    return f"{result['metrics'][headline(result['metrics'])]:.1f} {UNITS[metric_of(result)]}"


def headline(metrics: dict[str, Any]) -> str:
    """The metric to compare: top-1 accuracy, or mAP where images have several labels; the EMA's if there is an EMA."""
    return next(name for name in ("ema_top1", "ema_map", "top1", "map") if name in metrics)


def peak_memory() -> int:
    """Peak memory of this process or its device, in bytes."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def data_digest(recipe: Recipe, tell: Callable[[str], None] = lambda line: None) -> str:
    """Of a folder, a table or shards: all samples' names and classes; otherwise the name of the data and its size."""
    parts = []
    for split in ("train", "val"):
        source = open_source(recipe.data, split, tell)
        parts += [split, *source.classes, str(len(source))]
        if isinstance(source, Table):
            parts += [f"{source.key(index)} {source.lists.of(index).tolist()}" for index in range(len(source))]
        elif isinstance(source, Folder):
            parts += [f"{source.key(index)} {label}" for index, label in enumerate(source.labels.tolist())]
        elif isinstance(source, Shards):
            parts += [f"{source.key(index)} {label}" for index, label in enumerate(source.samples["label"].tolist())]
        elif isinstance(source, Stream):  # its order depends on its location and on the number of workers
            parts += [recipe.data.source, recipe.data.root, str(recipe.data.workers)]
        else:
            parts.append(recipe.data.source)
    return _digest("\n".join(parts))


def init_digest(init: str) -> str:
    """A digest of a file or run; a name such as pretrained stands for itself."""
    path = Path(weights_file(init))
    return hashlib.blake2b(path.read_bytes(), digest_size=6).hexdigest() if path.is_file() else init


def code_version(counts: Callable[[str], bool] = is_compute) -> str:
    """labelflow's version, and a digest of torch's, torchvision's, timm's and the code that decides a run's numbers, or
    of those files that count."""
    root = Path(labelflow.__file__).parent
    files = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    code = [f"{name}\n{(root / name).read_text(encoding='utf-8')}" for name in files if counts(name)]
    versions = f"{torch.__version__} {torchvision.__version__} {timm.__version__}"
    return f"{labelflow.__version__}+{_digest(versions + ''.join(code))}"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
