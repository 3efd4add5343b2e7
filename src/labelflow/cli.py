"""The command line: `labelflow COMMAND …`. Each command is a typed function, and one line in COMMANDS."""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
from rich.console import Console
from rich.table import Column, Table
from tyro.conf import OmitArgPrefixes, Positional

from labelflow.arguments import parse_arguments
from labelflow.compare_command import Compare, run_compare
from labelflow.coverage_command import coverage
from labelflow.engine import Interrupted
from labelflow.explore_command import explore
from labelflow.figure_command import figure
from labelflow.label_commands import LABEL_COMMANDS
from labelflow.recipes import ALL, find, find_any
from labelflow.recipes.methods import METHODS
from labelflow.robust_command import robust
from labelflow.run_commands import evaluate, look, report
from labelflow.spec import known
from labelflow.study_command import STUDY_COMMANDS
from labelflow.tasks import Annotate, annotate_data, differences
from labelflow.train_command import detect, segment, train, transfer


def list_recipes(pattern: Positional[str] = "") -> None:
    """Every recipe, with the number that its paper reports. Example: labelflow list swin

    Args:
        pattern: Only recipes whose names hold this.
    """
    table = Table(Column("recipe", no_wrap=True), "what it is", "paper", "reported", box=None)
    for entry in ALL.values():
        if pattern in entry.name:
            number = "" if entry.aim is None else f"{entry.aim:.1f} {entry.kind.unit}"
            table.add_row(entry.name, entry.about, entry.paper, number)
    if not table.row_count:
        raise ValueError(f"no recipe's name holds {pattern!r}; labelflow list shows all")
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(table)


def show(recipe: Positional[str]) -> None:
    """A recipe in full, and what differs from its parent. Example: labelflow show deit_small_tl_align

    Args:
        recipe: Its name; labelflow list shows all.
    """
    entry = find_any(recipe)
    reported = f"{entry.aim} {entry.kind.unit}" if entry.aim else ""
    facts = {"source": entry.source, "paper": entry.paper, "reported": reported, "command": entry.command}
    print(f"{entry.name}: {entry.about}")
    for key, value in facts.items():
        if value:
            print(f"  {key}: {value}")
    if entry.parent:
        print(f"\ndiffers from {entry.parent}:")
        for name, before, now in differences(find_any(entry.parent).recipe, entry.recipe):
            print(f"  {name}: {before!r} -> {now!r}")
    print(f"\n{json.dumps(asdict(entry.recipe), indent=2)}")


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
    options = parse_arguments(Compare, args, f"labelflow compare {name}", default=default, description=about)
    try:
        run_compare(name, options)
    except (Interrupted, KeyboardInterrupt):
        print("interrupted, and saved. The same command goes on", file=sys.stderr)
        raise SystemExit(130) from None


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
STUDY = "Run a planned study, and report what it decides. Example: labelflow study report studies/claims"
GROUPS = {"labels": LABELS, "study": STUDY}  # commands of commands
Command = Callable[..., None]
COMMANDS: dict[str, Command | dict[str, Command]] = {
    "list": list_recipes,
    "show": show,
    "train": train,
    "segment": segment,
    "detect": detect,
    "transfer": transfer,
    "compare": compare,
    "eval": evaluate,
    "predict": look,
    "report": report,
    "robust": robust,
    "annotate": annotate,
    "labels": LABEL_COMMANDS,
    "study": STUDY_COMMANDS,
    "figure": figure,
    "explore": explore,
    "coverage": coverage,
}
NAMED_FIRST = {  # what a command is about, before its settings, which depend on it
    **dict.fromkeys(("train", "segment", "detect"), "RECIPE"),
    "transfer": "RUN|MODEL DATA",
    "compare": "RECIPE METHODS",
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
            parse_arguments(found[name], rest[1:], f"labelflow {command} {name}")()
        elif command not in NAMED_FIRST:
            parse_arguments(found, rest, f"labelflow {command}")()
        elif not rest or rest[0].startswith("-"):
            how = f"labelflow {command} {NAMED_FIRST[command]} [settings]"
            if rest and rest[0] not in ("-h", "--help"):
                first = "run or model" if command == "transfer" else "recipe"
                raise ValueError(f"name the {first} first: {how}; labelflow list shows recipes")
            print(f"usage: {how}\n\n{found.__doc__}\n\nlabelflow list shows the recipes,")
            print(f"labelflow {command} {NAMED_FIRST[command]} --help the settings.")
        else:
            found(rest[0], rest[1:])
    except torch.OutOfMemoryError:
        smaller = "--group, --batch or --attack-batch, or --checkpointing"
        print(f"labelflow: the device is out of memory; choose a smaller {smaller}", file=sys.stderr)
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
        about = GROUPS[name] if isinstance(command, dict) else " ".join(str(command.__doc__).split("\n\n")[0].split())
        lines.append(f"  {name:8} {about}")
    head = f"usage: {prog} COMMAND …\n\nLabels that follow tokens: trains better vision transformers.\n"
    return "\n".join([head, *lines, "", f"{prog} COMMAND --help tells more."])
