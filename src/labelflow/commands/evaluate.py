"""`labelflow eval`: the metrics of a run's model."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tyro.conf import Positional

from labelflow.engine.run import Run
from labelflow.process import is_main_process

if TYPE_CHECKING:
    from rich.table import Table

    from labelflow.engine import Details


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
    """The metrics of a run's model.

    Args:
        run: The folder of a run.
        data: Other data with the same classes, instead of the run's own: all of a folder, or its val/.
        weights: best, last, or a file.
        image_size: For a classifier: another image size, if the model supports it.
        scales: For a segmenter: multi-scale testing, such as 0.75 1 1.25 1.5 1.75.
        flips: For a segmenter: also test the mirrored image.
        window: For a segmenter: the side of the sliding window; 0: the whole image at once.
        stride: For a segmenter: the stride of the sliding window.
        as_json: Print JSON, for programs.
    """
    from labelflow.tasks.runs import evaluate_in_detail

    changes = {
        "source": data,
        "image_size": image_size,
        "scales": scales,
        "flips": flips or None,
        "window": window,
        "stride": stride,
    }
    given = {name: value for name, value in changes.items() if value is not None}
    metrics, classes, images = evaluate_in_detail(run, weights, **given)
    if not is_main_process():
        return
    if as_json:
        print(json.dumps({**metrics, "classes": classes} if classes else metrics))
        return
    if classes:
        from labelflow.engine.progress import literal_console

        config = Run(run).config()
        every = config.get("task", "classify") != "classify" or config.get("multi_label", False)
        literal_console().print(_table(classes, every))
    print("  ".join(f"{name} {value:.3f}" for name, value in metrics.items()), f" ({images} images)")


def _table(classes: "Details", every: bool) -> "Table":
    """Of every class, or of the worst."""
    from rich.table import Table

    from labelflow.report.classes import rows, worst

    listed = classes if every else worst(classes)
    heads, lines = rows(listed)
    table = Table(*heads, box=None, caption=f"the worst {len(listed)} of {len(classes)}" if not every else None)
    for line in lines:
        table.add_row(*line)
    return table
