"""`labelflow eval | predict | report`: what can be done with a run of any task."""

import json
import os
from pathlib import Path
from typing import Annotated, Any

from PIL import Image
from rich.console import Console
from rich.table import Table
from tyro.conf import Positional, arg

from labelflow.analysis.drawn import draw_objects, draw_segments
from labelflow.classifier import load
from labelflow.data.images import read_or_refuse
from labelflow.engine import Details, Run
from labelflow.report import write_report
from labelflow.report.dense import shown
from labelflow.tasks import SURE, LoadedRun, Recipe, SegmentRecipe, find_objects, find_segments, load_run
from labelflow.tasks.kinds import kind_of
from labelflow.tasks.runs import evaluate_in_detail, read_any_recipe


def evaluate(
    run: Positional[Path],
    data: str | None = None,
    weights: str = "best",
    image_size: int | None = None,
    scales: tuple[float, ...] | None = None,
    flips: bool = False,
    window: int | None = None,
    stride: int | None = None,
    as_json: bool = False,
) -> None:
    """The metrics of a run's model. Example: labelflow eval runs/quickstart

    Args:
        run: The folder of a run.
        data: Other data of the same classes, instead of the run's own.
        weights: best, last, or a file.
        image_size: Of a classifier: another image size, if the model takes it.
        scales: Of a segmenter: sizes to ask at, such as 0.75 1 1.25 1.5 1.75, whose answers are averaged.
        flips: Of a segmenter: ask about the mirrored image, too.
        window: Of a segmenter: the side of a sliding window; 0: the whole image at once.
        stride: Of a segmenter: how far windows are apart.
        as_json: Print JSON, for programs.
    """
    changes = {
        "data": data,
        "image_size": image_size,
        "scales": scales,
        "flips": flips or None,
        "window": window,
        "stride": stride,
    }
    asked = {name: value for name, value in changes.items() if value is not None}
    metrics, classes = evaluate_in_detail(run, weights, **asked)
    if os.environ.get("RANK", "0") != "0":
        return
    if as_json:
        print(json.dumps({**metrics, "classes": classes} if classes else metrics))
        return
    if classes:
        Console(highlight=False).print(_table(classes))
    print("  ".join(f"{name} {value:.3f}" for name, value in metrics.items()))


def look(
    run: Positional[Path],
    images: Positional[tuple[Path, ...]],
    top: int = 3,
    least: float = SURE,
    out: Annotated[Path | None, arg(metavar="FOLDER")] = None,
    weights: str = "best",
) -> None:
    """What a run's model sees in images: classes, segments or objects. Example: labelflow predict runs/quickstart a.jpg

    Args:
        run: The folder of a run.
        images: Image files.
        top: Of a classifier: how many classes are told.
        least: Of a detector: how sure it must be of an object, from 0 to 1.
        out: Of a segmenter or detector: where pictures are written; the folder of the run, if it is not given.
        weights: best, last, or a file.
    """
    kind = kind_of(read_any_recipe(Run(run)))
    if kind.recipe is Recipe:
        classifier = load(run, weights)
        for path in images:
            likeliest = classifier.predict([path], top)[0]
            print(f"{path}  " + ", ".join(f"{name} {100 * value:.1f} %" for name, value in likeliest))
        return
    loaded = load_run(run, weights)
    folder, written = out or run / "predictions", set[Path]()
    for path in images:
        image = read_or_refuse(path)
        told, picture = _segments(loaded, image) if kind.recipe is SegmentRecipe else _objects(loaded, image, least)
        folder.mkdir(parents=True, exist_ok=True)
        drawn = folder / f"{path.stem}.png"
        if drawn in written:
            drawn = folder / f"{path.stem}_{len(written)}.png"
        written.add(drawn)
        picture.save(drawn)
        print(f"{path}  {told or 'nothing'}  {drawn}")


def report(run: Positional[Path]) -> None:
    """Write a run's report.html anew. Example: labelflow report runs/quickstart

    Args:
        run: The folder of a run.
    """
    print(write_report(run))


def _segments(loaded: LoadedRun[Any], image: Image.Image) -> tuple[str, Image.Image]:
    """How much of an image each class covers, and the picture."""
    found = find_segments(loaded, image)
    counts = found.flatten().bincount(minlength=len(loaded.classes)).tolist()
    parts = sorted(zip(counts, loaded.classes, strict=True), reverse=True)
    told = ", ".join(f"{name} {100 * count / found.numel():.1f} %" for count, name in parts if count)
    return told, draw_segments(image, found, loaded.classes)


def _objects(loaded: LoadedRun[Any], image: Image.Image, least: float) -> tuple[str, Image.Image]:
    """The objects, and the picture."""
    found = find_objects(loaded, image, least)
    pairs = zip(found["labels"].tolist(), found["scores"].tolist(), strict=True)
    told = ", ".join(f"{loaded.classes[label]} {100 * score:.0f} %" for label, score in pairs)
    return told, draw_objects(image, found, loaded.classes)


def _table(classes: Details) -> Table:
    names = list(next(iter(classes.values())))
    table = Table("class", *names, box=None)
    for name, own in classes.items():
        table.add_row(name, *(shown(own[key]) for key in names))
    return table
