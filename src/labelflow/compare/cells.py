"""Cells of a comparison: one method, one seed, an ordinary run. What a cell came to is a small JSON file.

OUT/cells/METHOD-SEED-KEY.json   a finished cell; it is enough to draw the table
OUT/runs/METHOD-SEED-KEY/        its run
"""

import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

import labelflow
from labelflow.data import Stream, open_source
from labelflow.data.folder import Folder
from labelflow.engine.run import Run, whole_file
from labelflow.guides import Mixing
from labelflow.labels import Store
from labelflow.recipes.methods import Method
from labelflow.tasks import Recipe, train_run
from labelflow.tasks.runs import FREE, flat

Result = dict[str, Any]  # what a cell came to, as in its file

# What only shows, names or compares results: it changes nothing that a run computes.
SHOWING = re.compile(r"(analysis|recipes|compare)/|(cli|__main__|\w+_commands?)\.py$")


@dataclass(frozen=True)
class Cell:
    method: str
    recipe: Recipe  # in full, with its seed
    data: str  # a digest of the samples and of the dense labels
    code: str  # the version, and a digest of the code that computes

    @property
    def seed(self) -> int:
        return self.recipe.training.seed

    @property
    def key(self) -> str:
        """Of all that decides what the cell computes, but not of where its files lie."""
        settings = {name: value for name, value in flat(asdict(self.recipe)) if name not in FREE | {"labels", "root"}}
        settings["data"] = "" if Path(self.recipe.data.data).is_dir() else self.recipe.data.data
        return _digest(json.dumps([settings, self.data, self.code], sort_keys=True))

    @property
    def data_name(self) -> str:
        """Without the path of a folder."""
        return Path(self.recipe.data.data).name if Path(self.recipe.data.data).is_dir() else self.recipe.data.data

    @property
    def name(self) -> str:
        return f"{self.method}-{self.seed}-{self.key}"

    def file(self, out: Path) -> Path:
        return out / "cells" / f"{self.name}.json"

    def run(self, out: Path) -> Path:
        return out / "runs" / self.name

    def finished(self, out: Path) -> Result | None:
        """What it came to before."""
        try:
            return json.loads(self.file(out).read_text())
        except FileNotFoundError:
            return None
        except json.JSONDecodeError as error:
            raise ValueError(f"{self.file(out)} is damaged: {error}; remove it, and the cell is trained anew") from None


def make_cells(recipe: Recipe, methods: list[Method], seeds: tuple[int, ...]) -> list[Cell]:
    """Seed by seed, so that all methods have as many when time runs out."""
    data, code = data_digest(recipe), code_version()
    resolved = {method.name: method.of(recipe) for method in methods}
    labels = Store(recipe.data.labels).checksum if any(one.data.labels for one in resolved.values()) else ""
    return [
        Cell(name, one.change(seed=seed), f"{data} {labels}" if one.data.labels else data, code)
        for seed in seeds
        for name, one in resolved.items()
    ]


def run_cell(cell: Cell, out: Path, quiet: bool = False) -> Result:
    """Train it, or go on where it was interrupted, and write what it came to."""
    begun = time.perf_counter()
    metrics = train_run(cell.recipe, cell.run(out), resume=True, name=cell.name, quiet=quiet)
    run = Run(cell.run(out))
    lines = run.metrics()
    card, environment = run.read("model.json"), run.read("environment.json")
    result = {
        "method": cell.method,
        "seed": cell.seed,
        "key": cell.key,
        "code": cell.code,
        "data": cell.data,
        "samples": card["samples"],
        "metrics": metrics,
        "curve": [[line["epoch"], line[headline(line)]] for line in lines if line["kind"] == "eval"],
        "images_per_second": median([line["images_per_second"] for line in lines if line["kind"] == "train"]),
        "seconds": round(sum(cell_seconds(cell, lines)) or time.perf_counter() - begun, 1),
        "peak_memory": peak_memory(),
        "parameters": card["parameters"],
        "guide_parameters": Mixing(cell.recipe.mixer).parameters,
        "recipe": asdict(cell.recipe.change(data=cell.data_name, root="", labels=Path(cell.recipe.data.labels).name)),
        "environment": {name: value for name, value in environment.items() if name != "command"},
    }
    text = json.dumps(result, indent=1) + "\n"
    if is_main_process():
        cell.file(out).parent.mkdir(parents=True, exist_ok=True)
        with whole_file(cell.file(out)) as path:
            path.write_text(text)
    return json.loads(text)


def is_main_process() -> bool:
    """Of those that torchrun launched."""
    return os.environ.get("RANK", "0") == "0"


def cell_seconds(cell: Cell, lines: list[dict[str, Any]]) -> Iterator[float]:
    """Of training, from the lines of its metrics: interruptions and evaluations do not count."""
    before = 0
    for line in lines:
        if line["kind"] == "train":
            yield (line["update"] - before) * cell.recipe.training.batch / line["images_per_second"]
            before = line["update"]


def headline(metrics: dict[str, Any]) -> str:
    """The accuracy that counts: of the average of the weights, where there is one."""
    return "ema_top1" if "ema_top1" in metrics else "top1"


def peak_memory() -> int:
    """Of this process or its device, in bytes."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def data_digest(recipe: Recipe) -> str:
    """Of the names of all samples and their classes; of a stream, of how many there are."""
    parts = []
    for split in ("train", "val"):
        source = open_source(recipe.data, split)
        parts += [split, *source.classes, str(len(source))]
        if isinstance(source, Folder):
            parts += [f"{source.key(index)} {label}" for index, (_, label) in enumerate(source.samples)]
        elif not isinstance(source, Stream):
            parts += [source.key(0), source.key(len(source) - 1)]
    return _digest("\n".join(parts))


def code_version() -> str:
    """labelflow's version, and a digest of the code that decides what a run computes."""
    root = Path(labelflow.__file__).parent
    files = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    code = [f"{name}\n{(root / name).read_text()}" for name in files if not SHOWING.match(name)]
    return f"{labelflow.__version__}+{_digest(''.join(code))}"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
