"""`labelflow predict`: classes, segments or objects in images."""

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from labelflow.engine.run import Run, atomic_write
from labelflow.spec import printable
from labelflow.tasks.detect.settings import SURE
from labelflow.tasks.recipe import Recipe, SegmentRecipe, read_any_recipe

if TYPE_CHECKING:
    from PIL import Image

    from labelflow.tasks import LoadedRun


def predict(
    model: Annotated[Positional[str], arg(metavar="RUN|MODEL")],
    images: Annotated[Positional[tuple[str, ...]], arg(metavar="IMAGES …")],
    top: int = 5,
    least: float = SURE,
    out: Annotated[Path | None, arg(metavar="FILE|FOLDER")] = None,
    format: Literal["table", "csv", "jsonl"] = "table",
    weights: str = "",
    batch: int = 32,
    workers: int = -1,
    skip_unreadable: int = 0,
) -> None:
    """What a model sees in images: classes, segments or objects.

    Args:
        model: The folder of a run, or a timm model.
        images: Files, folders (with all images below them), patterns such as "photos/**/*.jpg".
        top: For a classifier: how many classes of each image.
        least: For a detector: the score threshold, from 0 to 1.
        out: For a classifier: a .csv or .jsonl file to write instead of printing. For a segmenter or detector: the
            folder for pictures, masks, objects.json; RUN/predictions by default.
        format: For a classifier: what is printed.
        weights: Of a run best (the default), last, or a file; of a timm model pretrained (the default), packaged,
            random, or a file.
        batch: For a classifier: images in a batch.
        workers: Processes that read images; -1: one for each core, at most 8.
        skip_unreadable: Leave out up to so many unreadable images instead of stopping.
    """
    if not images:
        raise ValueError(f'no images: give files, folders or patterns, such as labelflow predict {model} "photos/*.jpg"')
    loading = {"workers": workers, "skip_unreadable": skip_unreadable}
    run = Run(model)
    if (run / "recipe.json").exists() and not isinstance(read_any_recipe(run), Recipe):
        if format != "table":
            raise ValueError(f"{model} writes pictures and masks or objects to --out; --format is for classifiers")
        _predict_dense(run.folder, images, least, out or run / "predictions", weights or "best", loading)
    else:
        _classify(model, images, top, out, format, weights, {"batch": batch, **loading})


def _classify(
    model: str, images: Sequence[str], top: int, out: Path | None, format: str, weights: str, loading: dict[str, int]
) -> None:
    from labelflow.classifier import load
    from labelflow.data.folder import find_images
    from labelflow.engine.setup import best_device
    from labelflow.predictions import FORMATS, HEAD, format_of

    files = [file for given in images for file in find_images(given)]
    if out is not None:
        format_of(out)
        if format != "table":
            raise ValueError(f"the ending of --out {out} says the format; leave out --format {format}")
    classifier = load(model, weights)
    classifier.model.to(best_device())
    found = classifier.predict(files, top, **loading)
    if out is not None:
        found.save(out)
        print(printable(f"{len(found)} predictions in {out}"))
    elif format == "table":
        _print_table(HEAD, found.cells())
    else:
        _print_text(FORMATS[format](found))


def _print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """As wide as the terminal; elsewhere, a line for each row."""
    from rich.console import Console
    from rich.table import Column, Table

    table = Table(*(Column(name, overflow="fold") for name in head), box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    plain = {"markup": False, "emoji": False, "highlight": False}
    console = Console(**plain)
    (console if console.is_terminal else Console(width=10_000, **plain)).print(table)


def _print_text(text: str) -> None:
    """Programs get names as they are; a terminal gets nothing that would change it."""
    if sys.stdout.isatty():
        text = "\n".join(printable(line) for line in text.split("\n"))
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


def _predict_dense(
    folder: Path, images: Sequence[str], least: float, out: Path, weights: str, loading: dict[str, int]
) -> None:
    from labelflow.data.folder import find_images
    from labelflow.engine.setup import best_device
    from labelflow.tasks import load_run

    files = list(dict.fromkeys(file for given in images for file in find_images(given)))
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file; name a folder")
    loaded = load_run(folder, weights)
    loaded.model.to(best_device())
    if isinstance(loaded.recipe, SegmentRecipe):
        rows = _segment(loaded, files, out, loading)
    else:
        rows = _detect(loaded, files, least, out, loading)
    _print_table(("file", "found", "picture"), [tuple(map(printable, row)) for row in rows])


def _segment(loaded: "LoadedRun[Any]", files: list[str], out: Path, loading: dict[str, int]) -> list[tuple[str, ...]]:
    """Pictures, and masks of class ids; classes.txt names them, from 0 on."""
    from labelflow.analysis.drawn import as_mask, draw_segments
    from labelflow.tasks import find_segments

    rows, names = [], picture_names(files)
    for file, image in _read(files, loading):
        found = find_segments(loaded, image)
        counts = found.flatten().bincount(minlength=len(loaded.classes)).tolist()
        parts = sorted(zip(counts, loaded.classes, strict=True), reverse=True)
        told = ", ".join(f"{name} {100 * count / found.numel():.1f} %" for count, name in parts if count)
        picture = _save(draw_segments(image, found, loaded.classes), out / "pictures" / names[file])
        _save(as_mask(found, len(loaded.classes)), out / "masks" / names[file])
        rows.append((file, told, str(picture)))
    _write(out / "classes.txt", "".join(f"{name}\n" for name in loaded.classes))
    return rows


def _detect(
    loaded: "LoadedRun[Any]", files: list[str], least: float, out: Path, loading: dict[str, int]
) -> list[tuple[str, ...]]:
    """Pictures; objects.json, in COCO's format for results; images.json, the images and categories it refers to."""
    from labelflow.analysis.drawn import draw_objects
    from labelflow.tasks import find_objects
    from labelflow.tasks.detect.metrics import as_results

    rows, names, objects, seen = [], picture_names(files), list[dict[str, Any]](), []
    categories = [{"id": number, "name": name} for number, name in enumerate(loaded.classes, start=1)]
    for number, (file, image) in enumerate(_read(files, loading), start=1):
        found = find_objects(loaded, image, least)
        results = as_results(found, number, range(1, len(loaded.classes) + 1))
        kinds = [loaded.classes[one["category_id"] - 1] for one in results]
        objects += [{"file_name": file, "category": kind, **one} for kind, one in zip(kinds, results, strict=True)]
        seen.append({"id": number, "file_name": file, "width": image.width, "height": image.height})
        told = ", ".join(f"{kind} {100 * one['score']:.0f} %" for kind, one in zip(kinds, results, strict=True))
        picture = _save(draw_objects(image, found, loaded.classes), out / "pictures" / names[file])
        rows.append((file, told or "nothing", str(picture)))
    _write(out / "objects.json", json.dumps(objects))
    _write(out / "images.json", json.dumps({"images": seen, "categories": categories, "annotations": []}))
    return rows


def _read(files: list[str], loading: dict[str, int]) -> "Iterator[tuple[str, Image.Image]]":
    """One by one: their sizes differ."""
    from labelflow.data.images import to_rgb
    from labelflow.data.pictures import Pictures
    from labelflow.predictions import read_batches

    for read in read_batches(Pictures(files, to_rgb), batch=1, **loading):
        yield read.names[0], read.seen[0]


def picture_names(files: Sequence[str]) -> dict[str, Path]:
    """Where the picture of each file goes: as they lie below the folder that they share. Files whose names differ in
    their endings alone keep these."""
    paths = {file: Path(os.path.abspath(file)) for file in files}
    shared = os.path.commonpath([path.parent for path in paths.values()])
    stems = Counter(path.with_suffix("") for path in paths.values())
    ends = {
        file: path.with_suffix(".png") if stems[path.with_suffix("")] == 1 else path.with_name(f"{path.name}.png")
        for file, path in paths.items()
    }
    return {file: path.relative_to(shared) for file, path in ends.items()}


def _save(picture: "Image.Image", path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path)
    return path


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as draft:
        draft.write_text(text, encoding="utf-8")
