"""`labelflow predict`: classes, segments or objects in images."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from labelflow.engine.run import Run
from labelflow.tasks.detect.settings import SURE
from labelflow.tasks.recipe import Recipe, SegmentRecipe, read_any_recipe

if TYPE_CHECKING:
    from PIL import Image

    from labelflow.tasks import LoadedRun


def predict(
    run: Positional[Path],
    images: Positional[tuple[Path, ...]],
    top: int = 3,
    least: float = SURE,
    out: Annotated[Path | None, arg(metavar="FOLDER")] = None,
    weights: str = "best",
) -> None:
    """What a run's model sees in images: classes, segments or objects.

    Args:
        run: The folder of a run.
        images: Image files.
        top: For a classifier: how many classes to print.
        least: For a detector: the score threshold, from 0 to 1.
        out: For a segmenter or detector: the folder of the images that are written; RUN/predictions by default.
        weights: best, last, or a file.
    """
    from labelflow.data.images import read_or_refuse
    from labelflow.tasks import load_run

    recipe = read_any_recipe(Run(run))
    if isinstance(recipe, Recipe):
        _classify(run, images, top, weights)
        return
    loaded = load_run(run, weights)
    folder, written = out or run / "predictions", set[Path]()
    for path in images:
        image = read_or_refuse(path)
        is_segmenter = isinstance(recipe, SegmentRecipe)
        summary, picture = _segments(loaded, image) if is_segmenter else _objects(loaded, image, least)
        folder.mkdir(parents=True, exist_ok=True)
        drawn = folder / f"{path.stem}.png"
        if drawn in written:
            drawn = folder / f"{path.stem}_{len(written)}.png"
        written.add(drawn)
        picture.save(drawn)
        print(f"{path}  {summary or 'nothing'}  {drawn}")


def _classify(run: Path, images: Sequence[Path], top: int, weights: str) -> None:
    from labelflow.classifier import load

    classifier = load(run, weights)
    for path in images:
        likeliest = classifier.predict([path], top)[0]
        print(f"{path}  " + ", ".join(f"{name} {100 * value:.1f} %" for name, value in likeliest))


def _segments(loaded: "LoadedRun[Any]", image: "Image.Image") -> "tuple[str, Image.Image]":
    """The part of the image that each class covers, and the drawing."""
    from labelflow.analysis.drawn import draw_segments
    from labelflow.tasks import find_segments

    found = find_segments(loaded, image)
    counts = found.flatten().bincount(minlength=len(loaded.classes)).tolist()
    parts = sorted(zip(counts, loaded.classes, strict=True), reverse=True)
    summary = ", ".join(f"{name} {100 * count / found.numel():.1f} %" for count, name in parts if count)
    return summary, draw_segments(image, found, loaded.classes)


def _objects(loaded: "LoadedRun[Any]", image: "Image.Image", least: float) -> "tuple[str, Image.Image]":
    """The objects, and the drawing."""
    from labelflow.analysis.drawn import draw_objects
    from labelflow.tasks import find_objects

    found = find_objects(loaded, image, least)
    pairs = zip(found["labels"].tolist(), found["scores"].tolist(), strict=True)
    summary = ", ".join(f"{loaded.classes[label]} {100 * score:.0f} %" for label, score in pairs)
    return summary, draw_objects(image, found, loaded.classes)
