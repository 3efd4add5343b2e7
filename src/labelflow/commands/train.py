"""`labelflow train | segment | detect | transfer`: from a recipe to a run and its report."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Generic, TypeVar

from tyro.conf import OmitArgPrefixes

from labelflow.arguments import parse_arguments
from labelflow.process import is_main_process
from labelflow.recipes import Entry, find_any
from labelflow.recipes.transfer import DATA, transferred_to
from labelflow.tasks.recipe import AnyRecipe, kind_of

R = TypeVar("R", bound=AnyRecipe)
NEXT = {  # after a first run
    "quickstart": (
        "play with it   labelflow explore {out}",
        "compare it     labelflow train quickstart_cutmix",
        "your images    labelflow train small_vit_tl_align --data FOLDER",
    ),
    "segment_quickstart": ("your images    labelflow segment segment_small --data FOLDER",),
    "detect_quickstart": ("your images    labelflow detect detect_small --data FOLDER",),
}


@dataclass(frozen=True)
class Train(Generic[R]):
    """Train a recipe. Any of its settings can be overridden."""

    recipe: Annotated[R, OmitArgPrefixes]
    out: Path
    """The folder of the run."""
    resume: bool = False
    """Resume the run in that folder, if there is one."""


def train(name: str, args: Sequence[str]) -> None:
    """Train a recipe."""
    _train(find_any(name, "classify"), args)


def segment(name: str, args: Sequence[str]) -> None:
    """Train a segmenter on a backbone."""
    _train(find_any(name, "segment"), args)


def detect(name: str, args: Sequence[str]) -> None:
    """Train a detector on a backbone."""
    _train(find_any(name, "detect"), args)


def transfer(model: str, args: Sequence[str]) -> None:
    """Fine-tune a run, or a pretrained timm model, on other data, as TL-Align's Table 5 does."""
    if not args or args[0].startswith("-"):
        raise ValueError(f"name the data: labelflow transfer {quote(model)} {' | '.join(DATA)} | FOLDER")
    recipe = transferred_to(model, args[0])
    name = re.sub(r"\W+", "_", f"transfer {Path(model).name} {Path(args[0]).name}").strip("_")
    prog = f"labelflow transfer {quote(model)} {quote(args[0])}"
    about = (
        f"{model} on {args[0]}: SGD for 1000 epochs, no erasing and no drop-path (TL-Align, Table 5), with TL-Align; "
        f"--target plain is without. Example: {prog} --epochs 100"
    )
    _run(prog, name, recipe, about, args[1:])


def _train(entry: Entry[Any], args: Sequence[str]) -> None:
    kind = entry.kind
    aim = f" The paper reports {entry.reported} ({entry.paper})." if entry.reported else ""
    about = f"{entry.about}.{aim} Example: {entry.command}"
    _run(f"labelflow {kind.command} {entry.name}", entry.name, entry.recipe, about, args)


def _run(prog: str, name: str, recipe: AnyRecipe, about: str, args: Sequence[str]) -> None:
    kind = kind_of(recipe)
    settings = Train[kind.recipe]  # type: ignore[name-defined]
    default = Train(recipe, Path("runs") / name)
    options = parse_arguments(settings, args, prog, default=default, description=about)
    from labelflow import api
    from labelflow.engine import Interrupted

    try:
        run = api.train(options.recipe, out=options.out, resume=options.resume, name=name)
    except Interrupted as stopped:
        print(f"{stopped}. Continue with --resume", file=sys.stderr)
        raise SystemExit(130) from None
    if not is_main_process():
        return
    out = quote(str(run.folder))
    reached, best = run.reached(run.metrics), run.reached(run.best)
    print(f"\nReached {reached:.1f} {run.unit} on the evaluation images.")
    if best > reached:
        print(f"The best weights, which are used from here on: {best:.1f}, after epoch {run.best['epoch']:.4g}.")
    print(f"  look at it     {run.page}")
    print(f"  use it         labelflow predict {out} IMAGE.jpg")
    for line in NEXT.get(name, ()):
        print(f"  {line.format(out=out)}")
