"""What does the engine cost? An update of `labelflow train` beside a bare loop (model, loss, backward, step) on the
same batches, interleaved in one run; and can the loader keep up with the model?

    python benchmarks/engine_cost.py --rounds 5 --updates 8

Bare and engine take turns, update by update. The engine's is timed from one batch to the next, so that all of it
counts: mixing, targets, backward, optimiser, schedule, average of weights, metrics and progress; evaluation and saving
come after the last. Time is the CPU time of one thread; the speed is the median of the paired ratios. Prints a table,
and writes out/engine_cost.json.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from labelflow.data import PixelBatch, open_source, train_batches
from labelflow.engine import Run, make_accelerator, train
from labelflow.engine.optim import make_optimizer
from labelflow.engine.progress import Progress
from labelflow.loss import soft_labels
from labelflow.recipes import find
from labelflow.tasks import Classification, Recipe

WAYS: dict[str, dict[str, Any]] = {
    "no mixing": {"mixer": "none", "target": "plain"},
    "CutMix": {"target": "plain"},
    "CutMix + TL-Align": {"target": "tl_align"},
    "CutMix + TL-Align + EMA": {"target": "tl_align", "ema": 0.999},
}


class Timed(Classification):
    """The same batches again and again; before each one, the bare loop takes its own update on it."""

    def __init__(self, recipe: Recipe, batches: list[PixelBatch]) -> None:
        super().__init__(recipe)
        self.batches = batches
        self.bare: list[float] = []
        self.engine: list[float] = []

    def train_batches(self, updates: int, first_update: int, rank: int, processes: int) -> Iterator[PixelBatch]:
        model = Classification(self.recipe).student.model.train()
        optimizer = make_optimizer(model, self.recipe.training)
        for number in range(updates):
            batch = self.batches[number % len(self.batches)]
            begin = time.process_time()
            seen = batch.to(torch.device("cpu"))
            loss = F.cross_entropy(model(seen.images), soft_labels(seen.labels, 10, self.recipe.smoothing))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            given = time.process_time()
            self.bare.append(given - begin)
            yield batch
            self.engine.append(time.process_time() - given)  # when the next one is asked for


def pairs(recipe: Recipe, batches: list[PixelBatch]) -> list[tuple[float, float]]:
    """Seconds of the bare loop and of the engine, update by update; the first two and the last are left out."""
    task = Timed(recipe, batches)
    with tempfile.TemporaryDirectory() as folder, Progress(quiet=True) as progress:
        train(task, recipe.training, Run(folder), make_accelerator(recipe.training), progress)
    return list(zip(task.bare, task.engine, strict=False))[2:-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=8, help="updates of a round")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--out", type=Path, default=Path("out"))
    options = parser.parse_args()
    torch.set_num_threads(1)

    recipe = find("quickstart").recipe.change(
        batch=options.batch,
        micro_batch=options.batch,
        epochs=1,
        warmup_epochs=0,
        source=f"world(train={options.batch * options.updates}, val=8)",
        workers=0,
        drop_path=0.0,
    )
    begin = time.process_time()
    loader = train_batches(
        open_source(recipe.data, "train"),
        recipe.data,
        batch=options.batch,
        micro_batch=options.batch,
        updates=options.updates,
        seed=0,
        rank=0,
        processes=1,
        first_update=0,
    )
    batches = list(loader)
    loading = (time.process_time() - begin) / len(batches)

    table = {}
    print(f"{'':26}speed   update")
    for name, how in WAYS.items():
        found = [pair for _ in range(options.rounds) for pair in pairs(recipe.change(**how), batches)]
        bare, engine = (statistics.median(values) for values in zip(*found, strict=True))
        table[name] = statistics.median(one / other for one, other in found)
        print(f"{name:26}{table[name]:.3f}   {1000 * engine:.1f} ms, bare {1000 * bare:.1f} ms")
    table["loader"] = bare / loading
    print(f"{'loader, one worker':26}{table['loader']:.2f}    {1000 * loading:.1f} ms")
    options.out.mkdir(exist_ok=True)
    (options.out / "engine_cost.json").write_text(json.dumps({"speed": table}, indent=2))


if __name__ == "__main__":
    main()
