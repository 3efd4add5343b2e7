"""What does a view cost a worker, and how large is it? Bytes, as labelflow sends them, beside float32 images that
timm's transforms normalise and erase, taking turns in one run.

    python benchmarks/view_cost.py --data FOLDER

Both ways make the same images, to the last bit, which is checked. A batch is read, augmented, stacked and put into
shared memory, as a worker does it. Time is the CPU time of one thread, the ratio the median of the paired ratios. What
is left for the device is timed on the CPU, too. Prints a table, and writes out/view_cost.json.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from timm.data import create_transform
from torch import Tensor

from labelflow.chance import Purpose, drawn_from
from labelflow.data import Data, PixelBatch, Source, Stream, open_source, train_transform
from labelflow.data.normalise import Normalise
from labelflow.data.views import Draw, Views, collate

CPU = torch.device("cpu")


class Ways:
    """The same batches, made in two ways."""

    def __init__(self, source: Source, data: Data) -> None:
        self.source, self.normalise = source, Normalise(data.mean, data.std)
        self.views = Views(source, train_transform(data), seed=0, training=True)
        self.timms = create_transform(
            data.image_size,
            is_training=True,
            auto_augment=data.auto_augment,
            interpolation=data.interpolation,
            re_prob=data.erasing,
            re_mode="pixel",
            mean=data.mean,
            std=data.std,
        )

    def bytes(self, draws: list[Draw]) -> PixelBatch:
        batch = collate([self.views[draw] for draw in draws], self.normalise)
        batch.pixels.share_memory_()
        batch.patches.noise.share_memory_()
        return batch

    def floats(self, draws: list[Draw]) -> Tensor:
        images = []
        for draw in draws:
            image, _ = self.source.load(draw.sample)
            with drawn_from(0, Purpose.VIEW, draw.epoch, draw.position):
                images.append(self.timms(image))
        return torch.stack(images).share_memory_()


def timed(work: Callable[[Any], Any], what: Any) -> tuple[float, Any]:
    begin = time.process_time()
    made = work(what)
    return time.process_time() - begin, made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="world", help="a folder of images, or world")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--out", type=Path, default=Path("out"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    # m7: beyond, timm posterizes to 0 bits at times, which Pillow refuses
    data = Data(source=options.data, image_size=options.size, auto_augment="rand-m7-mstd0.5-inc1", workers=0)
    source = open_source(data, "train")
    assert not isinstance(source, Stream)

    ways, times, sizes = Ways(source, data), [], []
    for number in range(options.rounds + 1):
        places = range(number * options.batch, (number + 1) * options.batch)
        draws = [Draw(place % len(source), 0, place) for place in places]
        [source.load(draw.sample) for draw in draws]  # both find files in the system's cache
        own, batch = timed(ways.bytes, draws)
        timms, floats = timed(ways.floats, draws)
        left, seen = timed(batch.to, CPU)
        assert torch.equal(seen.images, floats), "the two ways differ"
        times.append((own, timms, left))
        sizes.append((batch.pixels.nbytes, batch.patches.noise.nbytes, floats.nbytes))
    own, timms, left = (1000 / options.batch * statistics.median(one) for one in zip(*times[1:], strict=True))
    pixels, noise, whole = (sum(one) / len(sizes) / options.batch for one in zip(*sizes, strict=True))
    table = {
        "a view, ms": own,
        "a view as float32, ms": timms,
        "cost of bytes, ratio": statistics.median(one / other for one, other, _ in times[1:]),
        "left for the device, ms on this CPU": left,
        "bytes of a view": pixels,
        "bytes of its noise, on average": noise,
        "bytes as float32": whole,
        "times smaller": whole / (pixels + noise),
    }
    for key, value in table.items():
        print(f"{key:38}{value:12.4g}")
    options.out.mkdir(exist_ok=True)
    (options.out / "view_cost.json").write_text(json.dumps(table, indent=2))


if __name__ == "__main__":
    main()
