"""What do checksums cost? Saving a checkpoint, resuming from it, and loading a run's weights, with and without them,
interleaved in one run.

    python benchmarks/checks.py --model deit_small_patch16_224 --rounds 5

Without: what lists and compares checksums is replaced by nothing. Time is the wall clock's, since reading counts, too
(from the system's cache, unless the files are larger than the memory: the more a disk has to do, the less checksums
matter). The ratio is the median of the paired ones.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from unittest.mock import patch

import timm
import torch
from accelerate import Accelerator

from labelflow import files
from labelflow.align import Student
from labelflow.engine import Run, Training, checkpoint
from labelflow.engine import run as run_folder
from labelflow.engine.checkpoint import Checkpoints, State
from labelflow.engine.ema import Ema
from labelflow.engine.optim import make_optimizer
from labelflow.models import create


@contextmanager
def unchecked() -> Iterator[None]:
    with (
        patch.object(files, "checksum", lambda path: files.Checksum(0, "")),
        patch.object(run_folder, "check_file", lambda path, grows=False: None),
        patch.object(create, "check_file", lambda path: None),
        patch.object(checkpoint, "folder_problem", lambda folder: ""),
    ):
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="deit_small_patch16_224")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    model = timm.create_model(given.model)
    student = Student(model)
    optimizer = make_optimizer(student, Training())
    for parameter in student.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    ema, accelerator = Ema(student, 0.99), Accelerator(cpu=True)
    times: dict[str, list[tuple[float, float]]] = {"save": [], "resume": [], "load weights": []}
    with tempfile.TemporaryDirectory() as folder:
        ways = {name: Run(Path(folder) / name) for name in ("checked", "unchecked")}
        stored = {
            name: Checkpoints(run, student, optimizer, ema, accelerator, 2, lambda text: None)
            for name, run in ways.items()
        }
        for run in ways.values():
            run.folder.mkdir()
            run.rewind(0)
        for update in range(given.rounds + 1):
            taken = {}
            for name, run in ways.items():
                with unchecked() if name == "unchecked" else nullcontext():
                    save, load = partial(stored[name].save, State(update=update)), stored[name].load
                    weights = partial(create.load_exactly, model, run / "last.safetensors")
                    taken[name] = [seconds(act) for act in (save, load, weights)]
            for pairs, checked, without in zip(times.values(), taken["checked"], taken["unchecked"], strict=True):
                pairs.append((checked, without))
        size = sum(path.stat().st_size for path in run.checkpoints()[-1].iterdir())
    print(f"{given.model}: a checkpoint of {size / 1e6:.0f} MB, optimizer and EMA included")
    for name, pairs in times.items():
        ratio = statistics.median(checked / without for checked, without in pairs[1:])  # the first warms up
        checked, without = (statistics.median(column) for column in zip(*pairs[1:], strict=True))
        print(f"{name:14} {ratio:.2f}   {checked:.3f} s with checksums, {without:.3f} s without")


def seconds(act: Callable[[], object]) -> float:
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
