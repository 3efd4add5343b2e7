"""`labelflow export`: a run's model for programs without labelflow."""

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg


def export(
    run: Positional[str],
    format: Literal["timm", "onnx", "torch"] = "timm",
    out: Annotated[Path | None, arg(metavar="FOLDER")] = None,
    weights: str = "",
    repo: str = "",
) -> None:
    """A run's model for programs without labelflow, compared with torch before it is kept.

    Args:
        run: The folder of a run.
        format: timm: a folder that timm loads; onnx: for ONNX Runtime; torch: a program of torch.export.
        out: The folder to write; RUN/FORMAT by default.
        weights: best (the default), last, or a file.
        repo: Push timm's folder to the Hugging Face Hub, too: USER/NAME.
    """
    from labelflow.formats.exported import export

    print(export(run, format, out, weights, repo))
