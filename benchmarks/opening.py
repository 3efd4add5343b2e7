"""What does a folder of a million images cost before the first one is read? Listing it, opening it again, and the
memory of data workers: a list of (path, label), as most data sets keep it, beside labelflow's index.

    python benchmarks/opening.py --files 1281167 --folder /tmp/opening

Makes that many empty files in --folder (about half a gigabyte of inodes: `df -i`) and removes them afterwards. All are
in the system's cache when they are listed; a disk or a network adds its own time. Openings take turns in one process,
medians. Each row of memory is a fresh process with its workers, which ask for the name, key and label of samples all
over the folder, but decode nothing: USS, what is theirs alone, of all workers together, less that of workers without
any data. Linux only. Prints tables, and writes out/opening.json.
"""

import argparse
import gc
import json
import os
import shutil
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from labelflow.data.cache import cache_folder
from labelflow.data.folder import Folder, Listed
from labelflow.data.images import EXTENSIONS

STRIDE = 611_953  # a prime: one sample after another lies elsewhere
MB = 1e6


class Tuples(Listed):
    """The samples of a folder of class folders as Python objects."""

    def __init__(self, root: Path) -> None:
        self.root, self.classes = root, sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
        self.samples: list[tuple[str, int]] = []
        for label, name in enumerate(self.classes):
            found = []
            for where, _, files in os.walk(root / name, followlinks=True):
                below = os.path.relpath(where, root / name)
                images = [file for file in files if os.path.splitext(file)[1].lower() in EXTENSIONS]
                found += [os.path.normpath(os.path.join(below, file)) for file in images]
            self.samples += [(os.path.join(root, name, file), label) for file in sorted(found)]

    def __len__(self) -> int:
        return len(self.samples)

    def name(self, index: int) -> str:
        return self.samples[index][0]

    def label(self, index: int) -> int:
        return self.samples[index][1]

    def key(self, index: int) -> str:
        path, label = self.samples[index]
        return f"{self.classes[label]}/{os.path.splitext(path[len(str(self.root / self.classes[label])) + 1 :])[0]}"


class Index(Folder):
    """All samples, as labelflow keeps them."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, "val", val_fraction=1)

    def label(self, index: int) -> int:
        return int(self.labels[index])


class Nothing(Tuples):
    def __init__(self, root: Path) -> None:
        self.samples = []


WAYS: dict[str, Callable[[Path], Any]] = {"nothing": Nothing, "list of tuples": Tuples, "index": Index}


def make_files(folder: Path, files: int, classes: int) -> None:
    for label in range(classes):
        place = folder / f"n{label:08d}"
        place.mkdir(parents=True)
        for number in range(label, files, classes):
            os.close(os.open(f"{place}/{place.name}_{number // classes}.JPEG", os.O_CREAT))


def timed(work: Callable[[], Any]) -> dict[str, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    made = work()
    seconds = {"wall": time.perf_counter() - wall, "CPU": time.process_time() - cpu}
    del made
    return seconds


def openings(root: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Median seconds, by what was opened."""
    taken: dict[str, list[dict[str, float]]] = {}
    for _ in range(rounds):
        cache = cache_folder(root)
        assert cache is not None
        shutil.rmtree(cache, ignore_errors=True)
        for name, work in {
            "list of tuples, each time": lambda: Tuples(root),
            "index, first time": lambda: Index(root),
            "index, again": lambda: Index(root),
            "index, again, a tenth set aside": lambda: Folder(root, "train", val_fraction=0.1),
        }.items():
            taken.setdefault(name, []).append(timed(work))
    return {
        name: {clock: statistics.median(one[clock] for one in times) for clock in ("wall", "CPU")}
        for name, times in taken.items()
    }


def memory(process: int | str, *fields: str) -> float:
    """In MB, the sum of these fields of the process."""
    lines = [line.split() for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()]
    return sum(1024 * int(line[1]) for line in lines if line[0].rstrip(":") in fields) / MB


def work(source: Any, worker: int, workers: int, epochs: int, barrier: Any) -> None:
    barrier.wait()
    for epoch in range(epochs):
        barrier.wait()
        for number in range((worker + epoch) % workers, len(source), workers):
            index = number * STRIDE % len(source)
            source.name(index), source.key(index), source.label(index)
        barrier.wait()
    barrier.wait()


def workers_memory(root: Path, way: str, method: str, workers: int, epochs: int) -> dict[str, float]:
    """In MB: the PSS of what is opened, and the USS of all workers after their start and after each epoch."""
    before = memory("self", "Pss")
    source = WAYS[way](root)
    gc.collect()
    found = {"opened": memory("self", "Pss") - before}
    context: Any = get_context(method)
    barrier = context.Barrier(workers + 1)
    processes = [
        context.Process(target=work, args=(source, number, workers, epochs, barrier)) for number in range(workers)
    ]
    for process in processes:
        process.start()
    barrier.wait()
    for epoch in range(epochs + 1):
        name = f"after epoch {epoch}" if epoch else "started"
        found[name] = sum(memory(process.pid, "Private_Clean", "Private_Dirty") for process in processes)
        barrier.wait()
        if epoch < epochs:
            barrier.wait()
    for process in processes:
        process.join()
    return found


def table(rows: dict[str, dict[str, float]], digits: int) -> str:
    columns = list(next(iter(rows.values())))
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    lines += [
        f"| {name} | {' | '.join(f'{round(row[one], digits) + 0:,.{digits}f}' for one in columns)} |"
        for name, row in rows.items()
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="a new folder, for the files")
    parser.add_argument("--files", type=int, default=1_281_167)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("out"))
    options = parser.parse_args()
    if options.folder.exists():
        parser.error(f"{options.folder} exists; give a new folder")
    os.environ["LABELFLOW_CACHE"] = str(options.folder / "cache")
    root = options.folder / "files"
    try:
        make_files(root, options.files, options.classes)
        time.sleep(3)  # an index does not trust folders that were modified just now
        seconds = openings(root, options.rounds)
        print(f"\n{options.files:,} files: seconds\n\n{table(seconds, 2)}", flush=True)
        used: dict[str, dict[str, float]] = {}
        for method in ("fork", "spawn"):
            for way in WAYS:
                with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                    task = pool.submit(workers_memory, root, way, method, options.workers, options.epochs)
                    used[f"{way}, {method}"] = task.result()
            alone = used.pop(f"nothing, {method}")
            for way in list(WAYS)[1:]:
                row = used[f"{way}, {method}"]
                used[f"{way}, {method}"] = {name: megabytes - alone[name] for name, megabytes in row.items()}
        print(f"\nMB, of {options.workers} workers\n\n{table(used, 0)}")
    finally:
        shutil.rmtree(options.folder, ignore_errors=True)
    options.out.mkdir(exist_ok=True)
    (options.out / "opening.json").write_text(json.dumps({"seconds": seconds, "MB": used}, indent=2))


if __name__ == "__main__":
    main()
