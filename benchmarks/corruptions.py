"""How fast are the corruptions? Beside the package imagecorruptions, taking turns in one run.

    python benchmarks/corruptions.py --reference old/bin/python

`--reference` is the Python of an environment where imagecorruptions runs, which tests/golden_corruptions/README.md
tells how to make; without it ours are timed alone. Each side is a process of its own with one thread, and measures the
CPU time of its own calls, on a photograph of 224 pixels. Times are medians, in milliseconds, summed over the five
severities. The ratio is theirs to ours, so 2 is twice as fast; the least one is that of the severity least in favour
of ours.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from skimage.data import chelsea

from labelflow.robustness.corruptions import CORRUPTIONS, EXTRA

SEVERITIES = (1, 2, 3, 4, 5)
OURS = """
from labelflow.robustness.corruptions import corrupt
random = np.random.default_rng(0)
def call(name, severity): corrupt(image, name, severity, random)
"""
THEIRS = """
from imagecorruptions import corrupt
def call(name, severity): corrupt(image, severity, name)
"""
WORKER = """
import sys, time, warnings
warnings.simplefilter("ignore")
import cv2, numpy as np
cv2.setNumThreads(1)
image = np.load(sys.argv[1])
{side}
for line in sys.stdin:
    name, severity = line.split()
    start = time.process_time()
    call(name, int(severity))
    print(1000 * (time.process_time() - start), flush=True)
"""


class Side:
    """A process that corrupts the image on request, and returns how long it took."""

    def __init__(self, python: str, code: str, image: Path) -> None:
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self.process = subprocess.Popen(
            [python, "-c", WORKER.format(side=code), str(image)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **one_thread},
            text=True,
        )

    def milliseconds(self, name: str, severity: int) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(name, severity, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())

    def end(self) -> None:
        self.process.communicate()


def measured(sides: list[Side], name: str, rounds: int) -> list[list[float]]:
    """The median time of a call, [side][severity]; the sides take turns, and the first round doesn't count."""
    times: list[list[list[float]]] = [[[] for _ in SEVERITIES] for _ in sides]
    for _ in range(rounds + 1):
        for position, severity in enumerate(SEVERITIES):
            for side, own in zip(sides, times, strict=True):
                own[position].append(side.milliseconds(name, severity))
    return [[statistics.median(calls[1:]) for calls in own] for own in times]


def row(name: str, times: list[list[float]]) -> str:
    """A line of the table."""
    cells = [f"{sum(side):>11.1f}" for side in times]
    if len(times) == 2:
        ratios = [theirs / ours for ours, theirs in zip(*times, strict=True)]
        cells += [f"{sum(times[1]) / sum(times[0]):>11.2f}", f"{min(ratios):>11.2f}"]
    return f"{name:20}" + "".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", default="", help="the Python of an environment where imagecorruptions runs")
    parser.add_argument("--rounds", type=int, default=7, help="calls of each severity")
    parser.add_argument("--names", nargs="*", default=[*CORRUPTIONS, *EXTRA], help="which corruptions")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "image.npy"
        np.save(image, np.array(Image.fromarray(chelsea()[:, 75:375]).resize((224, 224), Image.Resampling.BICUBIC)))
        sides = [Side(sys.executable, OURS, image)]
        sides += [Side(options.reference, THEIRS, image)] if options.reference else []
        heads = ["ours ms", "theirs ms", "ratio", "least"] if options.reference else ["ours ms"]
        print(f"{'':20}" + "".join(f"{head:>11}" for head in heads))
        every = []
        for name in options.names:
            every.append(measured(sides, name, options.rounds))
            print(row(name, every[-1]), flush=True)
        print(row("all", [[time for times in every for time in times[side]] for side in range(len(sides))]))
        for side in sides:
            side.end()


if __name__ == "__main__":
    main()
