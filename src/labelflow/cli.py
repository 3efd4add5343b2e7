"""The command line: `labelflow COMMAND …`. Each command is a typed function, and one line in COMMANDS."""

import contextlib
import functools
import io
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.console import Console
from rich.table import Column, Table
from tyro.conf import OmitArgPrefixes, Positional

from labelflow.compare_command import Compare, run_compare
from labelflow.coverage_command import coverage
from labelflow.data.images import read_or_refuse
from labelflow.engine import Interrupted
from labelflow.explore_command import explore
from labelflow.figure_command import figure
from labelflow.label_commands import LABEL_COMMANDS
from labelflow.recipes import RECIPES, find
from labelflow.recipes.methods import METHODS
from labelflow.report import write_report
from labelflow.spec import known
from labelflow.tasks import Annotate, Recipe, annotate_data, differences, evaluate_run, load_run, predict, train_run


def list_recipes(pattern: Positional[str] = "") -> None:
    """Every recipe, with the number that its paper reports. Example: labelflow list swin

    Args:
        pattern: Only recipes whose names hold this.
    """
    table = Table(Column("recipe", no_wrap=True), "what it is", "paper", "top-1", box=None)
    for entry in RECIPES.values():
        if pattern in entry.name:
            table.add_row(entry.name, entry.about, entry.paper, "" if entry.top1 is None else f"{entry.top1:.1f}")
    if not table.row_count:
        raise ValueError(f"no recipe's name holds {pattern!r}; labelflow list shows all")
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(table)


def show(recipe: Positional[str]) -> None:
    """A recipe in full, and what differs from its parent. Example: labelflow show deit_small_tl_align

    Args:
        recipe: Its name; labelflow list shows all.
    """
    entry = find(recipe)
    facts = {"source": entry.source, "paper": entry.paper, "top-1 in the paper": entry.top1, "command": entry.command}
    print(f"{entry.name}: {entry.about}")
    for key, value in facts.items():
        if value:
            print(f"  {key}: {value}")
    if entry.parent:
        print(f"\ndiffers from {entry.parent}:")
        for name, before, now in differences(find(entry.parent).recipe, entry.recipe):
            print(f"  {name}: {before!r} -> {now!r}")
    print(f"\n{json.dumps(asdict(entry.recipe), indent=2)}")


@dataclass(frozen=True)
class Train:
    """Train a recipe. Any of its settings can be given another value."""

    recipe: Annotated[Recipe, OmitArgPrefixes]
    out: Path
    """The folder of the run."""
    resume: bool = False
    """Go on with the run in that folder, if there is one."""


def train(name: str, args: Sequence[str]) -> None:
    """Train a recipe. Example: labelflow train finetune_tl_align --data my/photos --epochs 20 --out runs/photos"""
    entry = find(name)
    default = Train(entry.recipe, Path("runs") / name)
    aim = f" The paper reports {entry.top1} % top-1 ({entry.paper})." if entry.top1 else ""
    about = f"{entry.about}.{aim} Example: {entry.command}"
    options = _parse(Train, args, f"labelflow train {name}", default=default, description=about)
    try:
        metrics = train_run(options.recipe, options.out, options.resume, name)
    except Interrupted as stopped:
        print(f"{stopped}. Go on with --resume", file=sys.stderr)
        raise SystemExit(130) from None
    if not _is_main_process():
        return
    page = write_report(options.out)
    print(f"\nReached {metrics.get('ema_top1', metrics['top1']):.1f} % top-1 on the evaluation images.")
    print(f"  look at it     {page}")
    print(f"  use it         labelflow predict {options.out} IMAGE.jpg")
    if entry.name == "quickstart":
        print(f"  play with it   labelflow explore {options.out}")
        print("  compare it     labelflow train quickstart_cutmix")
        print("  your images    labelflow train small_vit_tl_align --data FOLDER")


def compare(name: str, args: Sequence[str]) -> None:
    """The same training under several methods and seeds, in one table.
    Example: labelflow compare small_vit_cutmix cutmix tl_align --data my/photos --seeds 0 1 2 --out compare/photos"""
    entry = find(name)
    default = Compare(("cutmix", "tl_align"), entry.recipe, Path("compare") / name)
    about = (
        f"The recipe {name} under several methods and seeds: a table of accuracies with their spread, of speed and "
        f"memory, a plot, compare.html. What is finished is reused, what was interrupted goes on. Methods: "
        f"{', '.join(METHODS)}. Example: labelflow compare {name} cutmix tl_align --seeds 0 1 2"
    )
    options = _parse(Compare, args, f"labelflow compare {name}", default=default, description=about)
    try:
        run_compare(name, options)
    except (Interrupted, KeyboardInterrupt):
        print("interrupted, and saved. The same command goes on", file=sys.stderr)
        raise SystemExit(130) from None


def evaluate(
    run: Positional[Path], data: str = "", weights: str = "best", image_size: int = 0, as_json: bool = False
) -> None:
    """Top-1, top-5 and loss of a run's model. Example: labelflow eval runs/quickstart

    Args:
        run: The folder of a run.
        data: Other data of the same classes, instead of the run's own.
        weights: best, last, or a file.
        image_size: Another image size, if the model takes it.
        as_json: Print JSON, for programs.
    """
    changes = {"data": data, "image_size": image_size}
    metrics = evaluate_run(run, weights, **{name: value for name, value in changes.items() if value})
    if _is_main_process():
        print(json.dumps(metrics) if as_json else "  ".join(f"{name} {value:.3f}" for name, value in metrics.items()))


def classify(run: Positional[Path], images: Positional[tuple[Path, ...]], top: int = 3, weights: str = "best") -> None:
    """The likeliest classes of images. Example: labelflow predict runs/quickstart one.jpg two.png

    Args:
        run: The folder of a run.
        images: Image files.
        top: How many classes are told.
        weights: best, last, or a file.
    """
    loaded = load_run(run, weights)
    for path in images:
        likeliest = predict(loaded, [read_or_refuse(path)], top)[0]
        print(f"{path}  " + ", ".join(f"{name} {100 * value:.1f} %" for name, value in likeliest))


def report(run: Positional[Path]) -> None:
    """Write a run's report.html anew. Example: labelflow report runs/quickstart

    Args:
        run: The folder of a run.
    """
    print(write_report(run))


def annotate(data: Positional[str], options: Annotated[Annotate, OmitArgPrefixes]) -> None:
    """Dense labels from a trained classifier. Example: labelflow annotate my/photos --model runs/photos --out labels

    Args:
        data: A folder of images; or world, torch/NAME, hfds/NAME.
        options: The annotator, and how it annotates.
    """
    try:
        store = annotate_data(data, options)
    except KeyboardInterrupt:
        print("labelflow: interrupted; whole files are kept, go on with --resume", file=sys.stderr)
        raise SystemExit(130) from None
    if _is_main_process():
        print(f"\n{len(store)} label maps of {store.manifest.grid[0]}×{store.manifest.grid[1]} cells in {options.out}")
        print(f"  look at them   labelflow labels draw {options.out} {data}{' --split val' * (options.split == 'val')}")
        print(f"  train on them  labelflow train small_lvvit --data {data} --labels {options.out}")


LABELS = "Look at dense labels, check, import, export and draw them. Example: labelflow labels inspect labels/photos"
Command = Callable[..., None]
COMMANDS: dict[str, Command | dict[str, Command]] = {
    "list": list_recipes,
    "show": show,
    "train": train,
    "compare": compare,
    "eval": evaluate,
    "predict": classify,
    "report": report,
    "annotate": annotate,
    "labels": LABEL_COMMANDS,
    "figure": figure,
    "explore": explore,
    "coverage": coverage,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Bad input is one line on stderr and the exit code 2."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        if not args or args[0] in ("-h", "--help"):
            print(_overview("labelflow", COMMANDS))
            return 0
        command, rest = known(args[0], COMMANDS, "command"), args[1:]
        found = COMMANDS[command]
        if isinstance(found, dict):
            if not rest or rest[0] in ("-h", "--help"):
                print(_overview(f"labelflow {command}", found))
                return 0
            name = known(rest[0], found, f"command of labelflow {command}")
            _parse(found[name], rest[1:], f"labelflow {command} {name}")()
        elif command not in ("train", "compare"):
            _parse(found, rest, f"labelflow {command}")()
        elif not rest or rest[0].startswith("-"):
            how = f"labelflow {command} RECIPE {'METHODS ' * (command == 'compare')}[settings]"
            if rest and rest[0] not in ("-h", "--help"):
                raise ValueError(f"name the recipe first: {how}; labelflow list shows them")
            print(f"usage: {how}\n\n{found.__doc__}\n\nlabelflow list shows the recipes, ")
            print(f"labelflow {command} RECIPE --help their settings.")
        else:
            found(rest[0], rest[1:])
    except torch.OutOfMemoryError:
        print("labelflow: the device is out of memory; choose a smaller --group, or --checkpointing", file=sys.stderr)
        return 2
    except (ValueError, OSError, AssertionError) as error:  # timm asserts that images fit its models
        told = str(error).split("Original Traceback")[-1] if "Original Traceback" in str(error) else str(error)
        told = told.strip().splitlines()[-1] if told != str(error) else told  # of a worker: what it raised
        print(f"labelflow: {' '.join(told.split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("labelflow: interrupted", file=sys.stderr)
        return 130
    return 0


def _is_main_process() -> bool:
    """Of those that torchrun or accelerate launched."""
    return os.environ.get("RANK", "0") == "0"


def _overview(prog: str, commands: Mapping[str, Command | dict[str, Command]]) -> str:
    lines = []
    for name, command in commands.items():
        about = LABELS if isinstance(command, dict) else " ".join(str(command.__doc__).split("\n\n")[0].split())
        lines.append(f"  {name:8} {about}")
    head = f"usage: {prog} COMMAND …\n\nLabels that follow tokens: trains better vision transformers.\n"
    return "\n".join([head, *lines, "", f"{prog} COMMAND --help tells more."])


def _parse(what: Any, args: Sequence[str], prog: str, **options: Any) -> Any:
    """What tyro makes of the arguments; of a function, its call, left to be made. What it refuses is a ValueError."""
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told):
            made, unknown = tyro.cli(_deferred(what), args=args, prog=prog, return_unknown_args=True, **options)
    except SystemExit as stop:
        if not stop.code:  # --help
            raise
        raise ValueError(f"{_first_sentence(told.getvalue())} ({prog} --help tells more)") from None
    if unknown:
        raise ValueError(f"{prog} has no setting {unknown[0]} ({prog} --help tells which there are)")
    return made


def _deferred(what: Any) -> Any:
    if isinstance(what, type):
        return what

    @functools.wraps(what)
    def bind(*args: Any, **kwargs: Any) -> Callable[[], None]:
        return functools.partial(what, *args, **kwargs)

    return bind


def _first_sentence(box: str) -> str:
    """What tyro says in a box, with or without borders, below its title and above the next rule: in one line."""
    plain = re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯─]", "", box)  # neither colours nor borders
    _, *lines = [line.strip() for line in plain.splitlines()]
    paragraphs = re.split(r"\n(?:-*\n)+", "\n".join(lines).strip("-\n") + "\n")
    return " ".join(paragraphs[0].split())
