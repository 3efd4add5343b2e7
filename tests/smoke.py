"""What a first user does, on any system: no pytest, no make, no shell; workers and runs are spawned, never forked.

`python tests/smoke.py` with labelflow installed. Hosted checks run it on macOS and Windows.
"""

import _thread
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path
from threading import Thread

from labelflow.cli import main

SMALL = ["--epochs", "1", "--warmup-epochs", "0", "--batch", "32", "--micro-batch", "32", "--workers", "1"]
FEW = [*SMALL, "--batch", "2", "--micro-batch", "2"]
WORLD = ["--data", "world(train=64, val=32)"]
SCENES = ["--data", "world(train=4, val=2, objects=2)"]
DENSE = ["--labels", "labels", "--target", "token_label", "--mixer", "mixtoken(patch=8)"]
LONG = ["train", "quickstart", *WORLD, *SMALL, "--epochs", "6", "--save-updates", "1", "--workers", "2", "--out", "run"]
COMMANDS = [
    ["list", "quickstart"],
    [*LONG, "--resume"],  # it has been interrupted
    ["eval", "run"],
    ["data", "check", "photos"],
    ["train", "small_vit_tl_align", "--data", "photos", *FEW, "--out", "own"],
    ["predict", "own", "photos", "--out", "found.csv"],
    ["annotate", "photos", "--model", "own", "--workers", "1", "--out", "labels"],
    ["labels", "verify", "labels"],
    ["train", "small_vit_tl_align", "--data", "photos", *FEW, *DENSE, "--out", "labelled"],
    ["compare", "quickstart", "cutmix", "tl_align", *WORLD, *SMALL, "--seeds", "0", "--out", "compare"],
    ["robust", "run", "--suite", "clean", "--samples", "16", "--workers", "1", "--out", "robust"],
    ["segment", "segment_quickstart", *SCENES, *FEW, "--out", "segments"],
    ["detect", "detect_quickstart", *SCENES, *FEW, "--out", "objects"],
    ["figure", "aligned", "run", "--out", "figures/aligned"],
    ["export", "run", "--format", "torch"],
    ["report", "run"],
]
WRITTEN = ["run/report.html", "found.csv", "labels/manifest.json", "compare/compare.html", "robust/robust.html"]
WRITTEN += ["segments/report.html", "objects/report.html", "figures/aligned.png", "run/torch/model.pt2"]


def photos(folder: Path) -> None:
    """Two classes of four photographs each, with names that need care, some of them in a folder of their own."""
    from PIL import Image

    for name, colour in (("grün", (20, 160, 40)), ("with space", (160, 20, 40))):
        (folder / name / "more").mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (80, 72), colour).save(folder / name / ("more" if number % 2 else "") / f"{number}.png")


def run(command: list[str], expected: int = 0) -> None:
    print("\n$ labelflow", *command, flush=True)
    try:
        code = main(command)
    except SystemExit as stopped:
        code = stopped.code
    if code != expected:
        sys.exit(f"labelflow {command[0]} ended with {code}")


def interrupt(checkpoints: Path) -> None:
    """As Ctrl-C does, after a checkpoint."""
    while not any(checkpoints.glob("[0-9]*")):
        time.sleep(0.02)
    _thread.interrupt_main()


def smoke() -> None:
    multiprocessing.set_start_method("spawn", force=True)  # as on macOS and Windows
    with tempfile.TemporaryDirectory(prefix="a smoke tést ", ignore_cleanup_errors=True) as folder:
        os.chdir(folder)
        photos(Path("photos"))
        Thread(target=interrupt, args=(Path("run", "checkpoints"),), daemon=True).start()
        run(LONG, expected=130)
        for command in COMMANDS:
            run(command)
        missing = [name for name in WRITTEN if not Path(name).is_file()]
        os.chdir(Path(folder).anchor)  # Windows removes no folder that is in use
    if missing:
        sys.exit(f"nobody wrote {', '.join(missing)}")


if __name__ == "__main__":
    smoke()
