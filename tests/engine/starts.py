"""Start the same thing twice at once, again and again: does one go on, and the other end with one line?

    python tests/engine/starts.py FOLDER train 50 resume 50 compare 50

The parent only imports and forks, so that a round costs no start-up. Whoever gets the lock works only after the other
has ended, so that the two always meet.
"""

import io
import os
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from faulty_folders import run_here
from survive import ended

from labelflow.cli import main
from labelflow.comparison import run as comparison
from labelflow.tasks import runs

MODEL = "vit_tiny_patch16_224(patch_size=8, embed_dim=24, depth=2, num_heads=3)"
SMALL = ["--model", MODEL, "--image-size", "32", "--data", "world(train=32, val=16)", "--batch", "16"]
SMALL += ["--workers", "0", "--epochs", "2", "--log-updates", "1"]
COMPARE = ["compare", "quickstart", "cutmix", "tl_align", *SMALL, "--seeds", "0", "--speed-rounds", "0", "--jobs", "2"]
KINDS: dict[str, tuple[list[str], Any, str]] = {  # the command, and what it does once it has the lock
    "train": (["train", "quickstart", *SMALL], runs, "train"),
    "resume": (["train", "quickstart", *SMALL, "--resume"], runs, "train"),
    "compare": (COMPARE, comparison, "run_cells"),
}
PATIENCE = 60  # seconds


def start(kind: str, folder: Path, log: Path, other: Path | None = None) -> int:
    """A process that runs a command. Its log is there when it has ended."""
    child = os.fork()
    if child:
        return child
    command, module, work = KINDS[kind]
    code, errors = 99, io.StringIO()
    try:
        torch.set_num_threads(1)
        comparison.run_cells = run_here
        if other:
            setattr(module, work, after(other, getattr(module, work)))
        with redirect_stdout(io.StringIO()), redirect_stderr(errors):
            code = main([*command, "--out", str(folder)])
    finally:
        log.write_text(errors.getvalue())
        os._exit(code)


def after(log: Path, function: Callable[..., Any]) -> Callable[..., Any]:
    def patient(*args: Any, **kwargs: Any) -> Any:
        end = time.monotonic() + PATIENCE
        while not log.exists() and time.monotonic() < end:
            time.sleep(0.01)
        return function(*args, **kwargs)

    return patient


def is_clean(kind: str, folder: Path, alone: dict[str, str]) -> bool:
    """One of two starts ends well and leaves what a start alone leaves; the other is one line."""
    one, two = (folder.with_suffix(f".{number}.log") for number in range(2))
    children = [start(kind, folder, one, two), start(kind, folder, two, one)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    said = [log.read_text().splitlines() for log in (one, two)]
    (refusal,) = said[codes.index(2)] if sorted(codes) == [0, 2] else [""]
    clean = f"{folder} is in use by process " in refusal
    same = left(kind, folder) == alone
    if not (clean and same):
        print(f"{folder.name}: {codes}, {said}, {'the same' if same else 'another'} folder", flush=True)
    return clean and same


def left(kind: str, folder: Path) -> dict[str, str]:
    """What should be the same: of a run everything but its report and its command line; of a comparison, its runs."""
    if kind == "compare":
        runs = [path for path in (folder / "runs").iterdir() if path.is_dir()]
        return {f"{run.name}/{name}": value for run in runs for name, value in left("train", run).items()}
    return {name: value for name, value in ended(folder).items() if name not in ("report.html", "environment.json")}


def rounds(kind: str, folder: Path, count: int) -> int:
    """How many of so many rounds were clean."""
    folder.mkdir(parents=True)
    _, status = os.waitpid(start(kind, folder / "alone", folder / "alone.log"), 0)
    assert status == 0, (folder / "alone.log").read_text()
    alone, clean = left(kind, folder / "alone"), 0
    for number in range(count):
        trial = folder / f"trial{number}"
        if kind == "resume":  # a run that was stopped before its end
            shutil.copytree(folder / "alone", trial)
            shutil.rmtree(max((trial / "checkpoints").iterdir()))
        clean += is_clean(kind, trial, alone)
        shutil.rmtree(trial)
    return clean


if __name__ == "__main__":
    for kind, count in zip(sys.argv[2::2], map(int, sys.argv[3::2]), strict=True):
        print(kind, rounds(kind, Path(sys.argv[1]) / kind, count), "of", count, "clean refusals", flush=True)
