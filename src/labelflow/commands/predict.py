"""`labelflow predict`: classes, segments or objects in images."""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import OmitArgPrefixes, Positional, arg

from labelflow.arguments import flag
from labelflow.engine.run import Run
from labelflow.files import atomic_write, named_errors
from labelflow.spec import printable
from labelflow.tasks.detect.settings import SURE
from labelflow.tasks.recipe import Recipe, SegmentRecipe, read_any_recipe

if TYPE_CHECKING:
    from PIL import Image

    from labelflow.tasks import LoadedRun

Rows = list[tuple[str, str, str]]  # an image's file, what was found in it, the file of the drawing


@dataclass(frozen=True)
class Predict:
    """The model, the images and what is made of them."""

    model: Annotated[Positional[str], arg(metavar="RUN|MODEL")]
    """The folder of a run, or a timm model."""
    images: Annotated[Positional[tuple[str, ...]], arg(metavar="IMAGES …")]
    """Files, folders (with all images below them), quoted patterns such as "photos/**/*.jpg"."""
    out: Annotated[Path | None, arg(metavar="FILE|FOLDER")] = None
    """Of a classifier: a .csv or .jsonl file to write instead of printing. Of a segmenter or detector: the folder for
    pictures, and masks or objects.json; RUN/predictions by default."""
    format: Literal["table", "csv", "jsonl"] = "table"
    """Of a classifier: what is printed."""
    top: int = 3
    """Of a classifier: how many classes of each image, if it has one."""
    threshold: float = 0.5
    """Of a multi-label classifier: the probability above which an image has a label."""
    least: float = SURE
    """Of a detector: the score threshold, from 0 to 1."""
    weights: str = ""
    """Of a run: best (the default), last, or a file; of a timm model: pretrained (the default), packaged (from a
    package), random, or a checkpoint file."""
    batch: int = 32
    """Of a classifier: images in a batch."""
    workers: int = -1
    """Processes that read images; -1: one for each core, at most 8."""
    skip_unreadable: int = 0
    """Leave out up to this many unreadable images instead of stopping."""

    def __post_init__(self) -> None:
        for name, least in (("top", 1), ("batch", 1), ("workers", -1), ("skip_unreadable", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{flag(name)} must be at least {least}, not {getattr(self, name)}")
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"--threshold, a probability, must lie in [0, 1], not {self.threshold}")
        if not self.images:
            how = f'labelflow predict {self.model} my/photos "more/*.jpg"'
            raise ValueError(f"no images; give files, folders or patterns: {how}")

    def files(self) -> list[str]:
        from labelflow.data.scan import find_images

        return [file for given in self.images for file in find_images(given)]


def predict(options: Annotated[Predict, OmitArgPrefixes, arg(name="")]) -> None:
    """What a model sees in images: classes, segments or objects.

    Args:
        options: The model, the images and what is made of them.
    """
    run = Run(options.model)
    if run.has("recipe.json") and not isinstance(read_any_recipe(run), Recipe):
        _predict_dense(options, options.out or run / "predictions")
    else:
        _classify(options)


def _classify(options: Predict) -> None:
    from labelflow.classifier import load
    from labelflow.engine.setup import best_device
    from labelflow.predictions import FORMATS, format_of

    files, out, kind = options.files(), options.out, options.format
    if out is not None and format_of(out) != kind != "table":
        raise ValueError(f"--out {out} does not end in .{kind}; leave out --format, the ending says it")
    classifier = load(options.model, options.weights)
    classifier.model.to(best_device())
    found = classifier.predict(
        files,
        options.top,
        threshold=options.threshold,
        batch=options.batch,
        workers=options.workers,
        skip_unreadable=options.skip_unreadable,
    )
    if out is not None:
        found.save(out)
        print(printable(f"{len(found)} predictions in {out}"))
    elif kind == "table":
        _print_table(found.head, found.cells())
    else:
        _print_text(FORMATS[kind](found))


def _print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """As wide as the terminal; elsewhere, one line a row."""
    from rich.table import Column, Table

    from labelflow.engine.progress import literal_console

    table = Table(*(Column(name, overflow="fold") for name in head), box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    width = None if sys.stdout.isatty() else 10_000
    literal_console(width=width).print(table)


def _print_text(text: str) -> None:
    """Programs get the names as they are; a terminal, nothing that would change it."""
    if sys.stdout.isatty():
        text = "\n".join(printable(line) for line in text.split("\n"))
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


def _predict_dense(options: Predict, out: Path) -> None:
    from labelflow.engine.setup import best_device
    from labelflow.tasks import load_run

    if options.format != "table":
        raise ValueError(f"--format is for classifiers; {options.model} draws pictures in --out FOLDER")
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file; name a folder")
    files = list(dict.fromkeys(options.files()))
    loaded = load_run(options.model, options.weights or "best")
    loaded.model.to(best_device())
    pictures = {file: out / "pictures" / name for file, name in picture_names(files).items()}
    make = _segment if isinstance(loaded.recipe, SegmentRecipe) else _detect
    rows = make(loaded, options, pictures, out)
    _print_table(("file", "found", "picture"), [[printable(cell) for cell in row] for row in rows])


def _segment(loaded: "LoadedRun[Any]", options: Predict, pictures: dict[str, Path], out: Path) -> Rows:
    """Pictures, and masks of class ids; classes.txt names the classes, from 0 on."""
    from labelflow.analysis.drawn import as_mask, draw_segments
    from labelflow.tasks import find_segments

    rows: Rows = []
    for file, image in _read(pictures, options):
        found = find_segments(loaded, image)
        counts = found.flatten().bincount(minlength=len(loaded.classes)).tolist()
        parts = sorted(zip(counts, loaded.classes, strict=True), reverse=True)
        told = ", ".join(f"{name} {100 * count / found.numel():.1f} %" for count, name in parts if count)
        _save(draw_segments(image, found, loaded.classes), pictures[file])
        _save(as_mask(found, len(loaded.classes)), out / "masks" / pictures[file].relative_to(out / "pictures"))
        rows.append((file, told, str(pictures[file])))
    if rows:
        _write(out / "classes.txt", "".join(f"{name}\n" for name in loaded.classes))
    return rows


def _detect(loaded: "LoadedRun[Any]", options: Predict, pictures: dict[str, Path], out: Path) -> Rows:
    """Pictures; objects.json, COCO's format for results; images.json, the images and categories that it refers to."""
    from labelflow.analysis.drawn import draw_objects
    from labelflow.tasks import find_objects
    from labelflow.tasks.detect.metrics import as_results

    rows: Rows = []
    objects: list[dict[str, Any]] = []
    images: list[dict[str, Any]] = []
    categories = [{"id": number, "name": name} for number, name in enumerate(loaded.classes, start=1)]
    for number, (file, image) in enumerate(_read(pictures, options), start=1):
        found = find_objects(loaded, image, options.least)
        results = as_results(found, number, range(1, len(categories) + 1))
        names = [loaded.classes[one["category_id"] - 1] for one in results]
        pairs = list(zip(names, results, strict=True))
        objects += [{**one, "file_name": file, "category": name} for name, one in pairs]
        images.append({"id": number, "file_name": file, "width": image.width, "height": image.height})
        _save(draw_objects(image, found, loaded.classes), pictures[file])
        told = ", ".join(f"{name} {100 * one['score']:.0f} %" for name, one in pairs)
        rows.append((file, told or "nothing", str(pictures[file])))
    if rows:
        _write(out / "objects.json", json.dumps(objects))
        _write(out / "images.json", json.dumps({"images": images, "categories": categories, "annotations": []}))
    return rows


def _read(files: Iterable[str], options: Predict) -> "Iterator[tuple[str, Image.Image]]":
    """One by one: their sizes differ."""
    from labelflow.data.images import to_rgb
    from labelflow.data.pictures import Pictures
    from labelflow.predictions import read_batches

    for read in read_batches(Pictures(list(files), to_rgb), 1, options.workers, options.skip_unreadable):
        yield read.names[0], read.seen[0]


def picture_names(files: Sequence[str]) -> dict[str, Path]:
    """Where the picture of each file goes: as they lie below the folder that they share. If some names differ in their
    endings alone, all keep these.

    >>> picture_names(["in/a/1.jpg", "in/b/1.jpg"])["in/b/1.jpg"].as_posix()
    'b/1.png'
    """
    paths = {file: Path(os.path.abspath(file)) for file in files}
    shared = os.path.commonpath([path.parent for path in paths.values()])
    names = {file: path.with_suffix(".png") for file, path in paths.items()}
    if len(set(names.values())) < len(files):
        names = {file: path.with_name(f"{path.name}.png") for file, path in paths.items()}
    return {file: path.relative_to(shared) for file, path in names.items()}


def _save(picture: "Image.Image", path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with named_errors(path):
        picture.save(path)


def _write(path: Path, text: str) -> None:
    with atomic_write(path) as draft:
        draft.write_text(text, encoding="utf-8")
