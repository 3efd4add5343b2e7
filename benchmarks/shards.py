"""What does a view cost a worker that reads it from WebDataset shards, or from Hugging Face's Parquet files, beside a
folder of the same photographs? Taking turns in one run.

    python benchmarks/shards.py --data FOLDER

Photographs, or scenes of the sample world, are packed as they are, 250 in a shard, into a temporary folder. Views are
of random samples, and the same in all ways, which is checked. Time is CPU time, ratios are medians of the paired
ratios. Data is opened twice, first without and then with what is remembered. Prints a table, and writes
out/shards.json.
"""

import argparse
import io
import json
import os
import random
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
import webdataset  # noqa: F401  (before anything is timed)

from labelflow.data import Data, Source, World, open_map_style, train_transform
from labelflow.data.batches import Draw
from labelflow.data.folder import Listed
from labelflow.data.scan import find_images
from labelflow.data.views import View, Views

CLASSES = ["0", "1"]
PER_SHARD = 250


def draw_scenes(folder: Path, count: int) -> list[str]:
    world = World("train", count, size=256)
    paths = [str(folder / f"{place:06d}.jpg") for place in range(count)]
    for place, path in enumerate(paths):
        world.load(place)[0].save(path)
    return paths


def pack(paths: list[str], folder: Path) -> None:
    """Into tar and Parquet files."""
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=CLASSES)})
    (folder / "parquet").mkdir()
    for number, first in enumerate(range(0, len(paths), PER_SHARD)):
        part = list(enumerate(paths))[first : first + PER_SHARD]
        with tarfile.open(folder / f"train-{number:04d}.tar", "w") as tar:
            for place, path in part:
                tar.add(path, f"{place:06d}.jpg")
                label = tarfile.TarInfo(f"{place:06d}.cls")
                label.size = 1
                tar.addfile(label, io.BytesIO(b"%d" % (place % 2)))
        rows = {
            "image": [{"bytes": Path(path).read_bytes(), "path": os.path.basename(path)} for _, path in part],
            "label": [place % 2 for place, _ in part],
        }
        file = folder / "parquet" / f"train-{number:04d}.parquet"
        datasets.Dataset.from_dict(rows, features=features).to_parquet(file)


def openers(paths: list[str], folder: Path) -> dict[str, Callable[[], Source]]:
    last = (len(paths) - 1) // PER_SHARD
    wds = Data(source="wds", root=str(folder), train_split=f"train-{{0000..{last:04d}}}.tar")
    hfds = Data(source=f"hfds/{folder / 'parquet'}", root=str(folder / "huggingface"))
    return {
        "folder": lambda: Listed(folder, paths, [place % 2 for place in range(len(paths))], CLASSES),
        "wds": lambda: open_map_style(wds, "train"),
        "hfds": lambda: open_map_style(hfds, "train"),
    }


def timed(clock: Callable[[], float], work: Callable[[], Any]) -> tuple[float, Any]:
    begin = clock()
    made = work()
    return clock() - begin, made


def make(views: Views, draws: list[Draw]) -> list[View]:
    return [views[draw] for draw in draws]


def measure(sources: dict[str, Source], data: Data, batch: int, rounds: int) -> dict[str, list[float]]:
    """Seconds for each batch of views, by way."""
    order = random.Random(0).sample(range(len(sources["folder"])), len(sources["folder"]))
    views = {name: Views(source, train_transform(data), seed=0, training=True) for name, source in sources.items()}
    times: dict[str, list[float]] = {name: [] for name in sources}
    for number in range(rounds):
        places = range(number * batch, (number + 1) * batch)
        draws = [Draw(order[place % len(order)], 0, place) for place in places]
        [source.load(draw.sample) for source in sources.values() for draw in draws]  # into the system's cache
        seen = []
        for name in sorted(sources, key=lambda name: random.Random(f"{number} {name}").random()):
            seconds, made = timed(time.process_time, partial(make, views[name], draws))
            times[name].append(seconds)
            seen.append(made)
        for others in seen[1:]:
            assert all(np.array_equal(one.image, other.image) for one, other in zip(seen[0], others, strict=True))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="", help="a folder of JPEG files; by default, scenes of the sample world")
    parser.add_argument("--count", type=int, default=1000, help="how many scenes")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path("out"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    datasets.disable_progress_bars()
    table = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ["LABELFLOW_CACHE"] = str(folder / "cache")
        paths = find_images(options.data) if options.data else draw_scenes(folder, options.count)
        pack(paths, folder)
        sources = {}
        for name, opener in openers(paths, folder).items():
            for when in ("first", "again"):
                table[f"{name}, opened {when}, s"], sources[name] = timed(time.process_time, opener)
        times = measure(sources, Data(image_size=options.size), options.batch, options.rounds + 1)
    for name, own in times.items():
        table[f"{name}, a view, ms"] = 1000 / options.batch * statistics.median(own[1:])
        pairs = zip(own[1:], times["folder"][1:], strict=True)
        table[f"{name}, cost, ratio"] = statistics.median(one / other for one, other in pairs)
    for key, value in table.items():
        print(f"{key:28}{value:10.4g}")
    options.out.mkdir(exist_ok=True)
    (options.out / "shards.json").write_text(json.dumps(table, indent=2))


if __name__ == "__main__":
    main()
