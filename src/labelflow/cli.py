"""The command line: `labelflow COMMAND …`. One command is one file of `commands/`, imported when it is called, and one
line in COMMANDS."""

import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pkgutil import resolve_name
from typing import NamedTuple

from labelflow.process import is_launched, print_anything
from labelflow.spec import known, printable


class Command(NamedTuple):
    place: str  # module:function in labelflow.commands
    about: str  # in one line, with an example
    first: str = ""  # what is named before the settings, which depend on it; the function then takes it and the rest


LABELS = {
    "inspect": Command("labels:inspect", "What a store of labels is. Example: labelflow labels inspect labels/photos"),
    "verify": Command(
        "labels:verify",
        "Read all labels and compare them with their checksums. Example: labelflow labels verify labels/photos",
    ),
    "import": Command(
        "labels:import_labels",
        "Labels from a tree of CLASS/NAME.pt files, as Token Labeling and ReLabel released them. "
        'Example: labelflow labels import label_top5_train_nfnet labels/imagenet --seen "center(0.956)"',
    ),
    "export": Command(
        "labels:export_labels",
        "Write labels as a tree of CLASS/NAME.pt files. Example: labelflow labels export labels/photos tree",
    ),
    "draw": Command(
        "labels:draw",
        "Draw labels over some images. Example: labelflow labels draw labels/photos my/photos --out labels.png",
    ),
}
STUDY = {
    "run": Command(
        "study:run_study",
        "Run the cells of a plan that are missing, in its order. Example: labelflow study run studies/claims --jobs 2",
    ),
    "report": Command(
        "study:report_study",
        "What the finished cells of a study decide. Example: labelflow study report studies/claims",
    ),
    "repeat": Command(
        "study:repeat_cell",
        "Train a finished cell again and compare. Example: labelflow study repeat studies/claims world.cutmix --seed 3",
    ),
}
DATA = {
    "check": Command(
        "data:check",
        "Read all images of a folder, and report what is wrong with them. Example: labelflow data check my/photos",
    ),
}
COMMANDS: dict[str, Command | dict[str, Command]] = {
    "list": Command(
        "list:list_recipes", "Every recipe, with the number that its paper reports. Example: labelflow list swin"
    ),
    "show": Command(
        "show:show",
        "A recipe in full, and what differs from its parent. Example: labelflow show deit_small_tl_align",
    ),
    "train": Command(
        "train:train",
        "Train a recipe. Example: labelflow train finetune_tl_align --data my/photos --epochs 20 --out runs/photos",
        "RECIPE",
    ),
    "segment": Command(
        "train:segment",
        "Train a segmenter on a backbone. Example: labelflow segment segment_small --backbone runs/vit --data my/masks",
        "RECIPE",
    ),
    "detect": Command(
        "train:detect",
        "Train a detector on a backbone. Example: labelflow detect detect_finetune --data my/coco --out runs/detector",
        "RECIPE",
    ),
    "transfer": Command(
        "train:transfer",
        "Fine-tune a run, or a pretrained timm model, on other data, as TL-Align's Table 5 does. "
        "Example: labelflow transfer runs/deit_small_tl_align cifar10 --target plain --out runs/deit_small_cifar10",
        "RUN|MODEL DATA",
    ),
    "compare": Command(
        "compare:compare",
        "The same training under several methods and seeds, in one table. Example: "
        "labelflow compare small_vit_cutmix cutmix tl_align --data my/photos --seeds 0 1 2 --out compare/photos",
        "RECIPE METHODS",
    ),
    "eval": Command("evaluate:evaluate", "The metrics of a run's model. Example: labelflow eval runs/quickstart"),
    "predict": Command(
        "predict:predict",
        "What a model sees in images: classes, segments or objects. "
        "Example: labelflow predict runs/quickstart my/photos --out predictions.csv",
    ),
    "report": Command("report:report", "Write a run's report.html again. Example: labelflow report runs/quickstart"),
    "export": Command(
        "export:export",
        "A run's model for timm, ONNX Runtime or torch alone, or for the Hugging Face Hub. "
        "Example: labelflow export runs/quickstart --format onnx",
    ),
    "robust": Command(
        "robust:robust",
        "How robust models are: natural shifts, corruptions, attacks, occlusion, calibration; side by side. "
        "Example: labelflow robust runs/plain runs/tl_align --suite clean,corruptions,attack",
    ),
    "annotate": Command(
        "annotate:annotate",
        "Dense labels from a trained classifier. "
        "Example: labelflow annotate my/photos --model runs/photos --out labels",
    ),
    "data": DATA,
    "labels": LABELS,
    "study": STUDY,
    "figure": Command(
        "figure:figure",
        "A figure of the papers for your model and images, as PNG, SVG and JSON; without a name, the list of them. "
        "Example: labelflow figure aligned runs/quickstart cat.jpg dog.jpg",
    ),
    "explore": Command(
        "explore:explore",
        "A web page to play with: mix two images, drag the box, and watch the labels move through a model. "
        "Example: labelflow explore runs/quickstart --images cat.jpg dog.jpg",
    ),
    "coverage": Command(
        "coverage:coverage",
        "Which of timm's models labels can follow: attaches all, and runs one of each kind. "
        'Example: labelflow coverage "eva02*" "convnext*"',
    ),
}
GROUPS = {  # commands of commands
    "data": "Check images before training on them. Example: labelflow data check my/photos",
    "labels": "Inspect, check, import, export and draw dense labels. Example: labelflow labels inspect labels/photos",
    "study": "Run a planned study, and report what it decides. Example: labelflow study report studies/claims",
}
DEBUG = "--debug"


def main(argv: Sequence[str] | None = None) -> int:
    """Bad input is one line on stderr and the exit code 2; with --debug or LABELFLOW_DEBUG=1, a traceback."""
    args = list(sys.argv[1:] if argv is None else argv)
    print_anything()
    debug = DEBUG in args or os.environ.get("LABELFLOW_DEBUG", "0") not in ("", "0")
    try:
        _call("labelflow", COMMANDS, [arg for arg in args if arg != DEBUG])
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("labelflow: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _has_no_reader():
            return 1
        if debug or not (message := _message(error)):
            raise
        print(f"labelflow: {message}", file=sys.stderr)
        return 2
    return 0


def _call(prog: str, commands: Mapping[str, Command | dict[str, Command]], args: list[str]) -> None:
    if not args or args[0] in ("-h", "--help"):
        print(_overview(prog, commands))
        return
    name = known(args[0], commands, "command" if prog == "labelflow" else f"command of {prog}")
    command, prog, rest = commands[name], f"{prog} {name}", args[1:]
    if isinstance(command, dict):
        _call(prog, command, rest)
    elif not command.first:
        from labelflow.arguments import parse_arguments

        function = resolve_name(f"labelflow.commands.{command.place}")
        parse_arguments(function, rest, prog, description=command.about)()
    elif rest and not rest[0].startswith("-"):
        resolve_name(f"labelflow.commands.{command.place}")(rest[0], rest[1:])
    else:
        of_run = "RUN" in command.first
        recipes = "" if of_run else "; labelflow list shows the recipes"
        if rest and rest[0] not in ("-h", "--help"):
            first = "run or model" if of_run else "recipe"
            raise ValueError(f"name the {first} first: {prog} {command.first} [settings]{recipes}")
        how = f"{prog} {command.first}"
        print(f"usage: {how} [settings]\n\n{command.about}\n\n{how} --help shows the settings{recipes}")


def _overview(prog: str, commands: Mapping[str, Command | dict[str, Command]]) -> str:
    lines = [
        f"  {name:8} {GROUPS[name] if isinstance(command, dict) else command.about}"
        for name, command in commands.items()
    ]
    head = f"usage: {prog} COMMAND …\n\nLabels that follow tokens: TL-Align and Token Labeling.\n"
    debug = f"{DEBUG}, anywhere, or LABELFLOW_DEBUG=1 shows the traceback of an error."
    return "\n".join([head, *lines, "", f"{prog} COMMAND --help shows its options.", debug])


def _has_no_reader() -> bool:
    """Whether what is printed goes to a program that has ended, as head does after ten lines."""
    try:
        print(flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more as it ends
        return True
    return False


def _message(error: Exception) -> str:
    """What was wrong with the input, in one line; '' if the error is ours."""
    if type(error).__name__ == "OutOfMemoryError":  # torch's, which is not imported for its sake
        return "out of memory; try a smaller --micro-batch, --batch or --attack-batch, or --checkpointing"
    if lost := _of_lost_process(error):
        return lost
    if not isinstance(error, ValueError | OSError) and not _is_of_timm(error):
        return ""
    text = str(error)
    if "Original Traceback" in text:  # in a worker: its last line, without the error's name
        text = re.sub(r"^[\w.]+: ", "", text.split("Original Traceback")[-1].strip().splitlines()[-1])
    return printable(" ".join(text.split()))


def _of_lost_process(error: Exception) -> str:
    """What to do if a process has died that this one was waiting for; '' otherwise."""
    go_on = "train and annotate continue with --resume"
    lost_connection = isinstance(error, OSError | EOFError) and "torch.multiprocessing.reductions" in _modules(error)
    if lost_connection or str(error).startswith("DataLoader worker"):
        _ignore_ended_workers()
        return f"a data worker was killed, perhaps for lack of memory: try fewer --workers; {go_on}"
    collective = type(error).__name__.startswith("Dist") or "gloo" in str(error)
    if is_launched() and isinstance(error, RuntimeError) and collective:
        return f"another of the launched processes has ended, and says why; {go_on}"
    return ""


def _ignore_ended_workers() -> None:
    """Torch would raise the lost one's end again, wherever this process is as it stops."""
    if hasattr(signal, "SIGCHLD") and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _is_of_timm(error: Exception) -> bool:
    """timm asserts that images and arguments fit its models."""
    return isinstance(error, AssertionError) and _modules(error)[-1].startswith("timm.")


def _modules(error: Exception) -> list[str]:
    """Where it was raised, the innermost last."""
    return [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)]
