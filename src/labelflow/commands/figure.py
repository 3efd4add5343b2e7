"""`labelflow figure`: the papers' figures for one's own model and images."""

import ast
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from tyro.conf import Positional

from labelflow.figures import FIGURES
from labelflow.spec import known


def figure(
    name: Positional[str] = "",
    what: Positional[tuple[str, ...]] = (),
    out: Path | None = None,
    weights: str = "",
    count: int = 0,
    mixer: str = "cutmix(alpha=1.0, per='sample')",
    annotator: str = "",
    data: str = "",
    top: int = 1,
    method: Literal["lrp", "gradient", "rollout"] = "lrp",
) -> None:
    """A figure of the papers for your model and images, as PNG, SVG and JSON; without a name, the list of them.

    Args:
        name: The figure; labelflow figure lists them.
        what: Run folders or timm models, then image files; without files, evaluation images.
        out: The output path, or a folder that exists; figures/NAME by default. NAME.webp is WebP instead of PNG.
        weights: For timm models: pretrained (the default), packaged, random, or a file; for runs: best (the default),
            last, or a file. For a single model: deit_tiny_patch16_224=random.
        count: How many images or pairs; 0: the figure's default.
        mixer: How images are mixed.
        annotator: For ratio: the run or model whose label maps Token Labeling uses; by default the model itself.
        data: Other evaluation images than the run's own, such as 'world(objects=2)'.
        top: For relevance: how many classes to show.
        method: For relevance: how it is computed.
    """
    if not name:
        print("usage: labelflow figure NAME RUN|MODEL … [IMAGES]\n")
        for one in FIGURES:
            print(f"  {one:14} {_about(one)}")
        print("\nSee labelflow figure --help for the options.")
        return
    known(name, FIGURES, "figure")
    from labelflow.figures import FigureRequest, save, styled  # imports matplotlib

    models, files = split(what)
    request = FigureRequest(models, files, weights, count, mixer, annotator, data, top, method, track)
    drawing = FIGURES[name]
    result = drawing.compute(request)
    with styled():
        moving = drawing.animate(result) if hasattr(drawing, "animate") else ""
        kind = "webp" if out and out.suffix == ".webp" else "png"
        paths = save(drawing.draw(result), result, _stem(out, name), kind, moving)
    print(drawing.summary(result))
    print(f"\n  look at it     {paths[0]}  (and {paths[1].name}; the numbers: {paths[2].name})")


def track(work: list[Any], what: str) -> Iterable[Any]:
    """A progress bar, in a terminal."""
    import rich.progress
    from rich.console import Console

    console = Console()
    return rich.progress.track(work, what, console=console, transient=True, disable=not console.is_terminal)


def split(what: Sequence[str]) -> tuple[tuple[str, ...], tuple[Path, ...]]:
    """Runs and models, and image files (of folders, too).

    >>> split(["deit_small_patch16_224", "cat.jpg"])
    (('deit_small_patch16_224',), (PosixPath('cat.jpg'),))
    """
    from labelflow.data.images import EXTENSIONS

    models: list[str] = []
    files: list[Path] = []
    for one in what:
        path = Path(one)
        if path.suffix.lower() in EXTENSIONS:
            files.append(path)
        elif path.is_file():
            raise ValueError(f"{one} is not an image file ({', '.join(sorted(EXTENSIONS))})")
        elif path.is_dir() and not (path / "recipe.json").exists():
            found = sorted(file for file in path.iterdir() if file.suffix.lower() in EXTENSIONS)
            if not found:
                raise ValueError(
                    f"{one} is neither a run (it has no recipe.json) nor a folder of images (subfolders do not count)"
                )
            files += found
        else:
            models.append(one)
    return tuple(models), tuple(files)


def _stem(out: Path | None, name: str) -> Path:
    """Of the figure's files: without an extension that was given; in a folder, under the figure's name."""
    if out is None or out.is_dir():
        return (out or Path("figures")) / name
    return out.with_suffix("") if out.suffix in (".png", ".webp", ".svg", ".json") else out


def _about(name: str) -> str:
    """The first line of its docstring, read without importing matplotlib."""
    found = find_spec(FIGURES.places[name])
    assert found
    assert found.origin
    text = ast.get_docstring(ast.parse(Path(found.origin).read_text(encoding="utf-8")))
    return (text or "").splitlines()[0]
