"""What a first user does, on any system: no pytest, no make, no shell; workers and runs are spawned, never forked.

`python tests/smoke.py` with labelflow installed. Hosted checks run it on macOS and Windows.
"""

import multiprocessing
import os
import sys
import tempfile
from pathlib import Path

from labelflow.cli import main

SMALL = ["--epochs", "1", "--warmup-epochs", "0", "--batch", "32", "--micro-batch", "32", "--workers", "2"]
WORLD = ["--data", "world(train=64, val=32)"]


def photos(folder: Path) -> None:
    """Two classes of four photographs each, with names that need care."""
    from PIL import Image

    for name, colour in (("grün", (20, 160, 40)), ("with space", (160, 20, 40))):
        (folder / name).mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (80, 72), colour).save(folder / name / f"{number}.png")


COMMANDS = [
    ["train", "quickstart", *WORLD, *SMALL, "--out", "run"],
    ["eval", "run"],
    ["data", "check", "photos"],
    ["train", "small_vit_tl_align", "--data", "photos", *SMALL, "--batch", "4", "--micro-batch", "4", "--out", "own"],
    ["predict", "own", "photos", "--out", "found.csv"],
    ["annotate", "photos", "--model", "own", "--workers", "2", "--out", "labels"],
    ["labels", "verify", "labels"],
    ["compare", "quickstart", "cutmix", "tl_align", *WORLD, *SMALL, "--seeds", "0", "--out", "compare"],
    ["robust", "run", "--suite", "clean", "--samples", "16", "--workers", "2", "--out", "robust"],
    ["report", "run"],
]
WRITTEN = ["run/report.html", "found.csv", "labels/manifest.json", "compare/compare.html", "robust/robust.html"]


def smoke() -> None:
    multiprocessing.set_start_method("spawn", force=True)  # as on macOS and Windows
    with tempfile.TemporaryDirectory(prefix="a smoke tést ", ignore_cleanup_errors=True) as folder:
        os.chdir(folder)
        photos(Path("photos"))
        for command in COMMANDS:
            print("\n$ labelflow", *command, flush=True)
            if code := main(command):
                sys.exit(f"labelflow {command[0]} ended with {code}")
        missing = [name for name in WRITTEN if not Path(name).is_file()]
        os.chdir(Path(folder).anchor)  # Windows removes no folder that is in use
    if missing:
        sys.exit(f"nobody wrote {', '.join(missing)}")


if __name__ == "__main__":
    smoke()
