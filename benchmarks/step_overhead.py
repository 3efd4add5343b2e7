"""What does alignment cost? A training step (forward, loss, backward) of plain CutMix on the model as timm ships it,
the same step with `Aligned`, and (for ViT, Swin, PVT) a naive dense version, interleaved in one run.

    python benchmarks/step_overhead.py --models deit_small_patch16_224 --batch 8 --rounds 15

Time is the process's CPU time on one thread, as a ratio to the plain step beside it; "labels" is what moving labels
took inside the aligned steps themselves, which noise between steps cannot touch. With `--merge-tokens 13` the naive
version makes way for a model that merges 13 tokens in each block, alone ("merging") and aligned ("both"). Memory is the
peak above what was held before the step. Prints a table, and writes out/step_overhead.json and .png.
"""

import argparse
import gc
import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler, which counts the memory, is talkative
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import timm
import torch
import torch.nn.functional as F
from naive import Naive
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import labelflow as lf
from labelflow.follow import Follower
from labelflow.models.create import create

MODELS = [
    *("deit_small_patch16_224", "swin_tiny_patch4_window7_224", "pvt_small"),
    *("mixer_s16_224", "convnext_tiny", "cait_xxs24_224", "swinv2_tiny_window8_256", "beit_base_patch16_224"),
]
Step = Callable[[], Tensor]


def steps(name: str, batch: int, merge: int) -> dict[str, Step]:
    """Ways to take the same training step, each on a copy of a model."""
    torch.manual_seed(0)
    images = torch.randn(batch, *timm.get_pretrained_cfg(name).input_size)
    y = lf.soft_labels(torch.randint(0, 1000, (batch,)), 1000, smoothing=0.1)
    cutmix = lf.CutMix(alpha=1.0)

    def plain_step(model: nn.Module) -> Tensor:
        mix = cutmix(images, torch.Generator().manual_seed(1))
        return F.cross_entropy(model(mix.apply(images)), mix.blend(y))

    def aligned_step(aligned: lf.Aligned) -> Tensor:
        mix = cutmix(images, torch.Generator().manual_seed(1))
        logits, share = aligned(mix.apply(images), mix.share)
        return F.cross_entropy(logits, mix.blend(y, share))

    ways: dict[str, Step] = {
        "plain": partial(plain_step, timm.create_model(name)),
        "aligned": partial(aligned_step, lf.Aligned(timm.create_model(name))),
    }
    if merge:
        merging = f"{name}(merge_tokens={merge})"
        ways["merging"] = partial(plain_step, create(merging))
        return {**ways, "both": partial(aligned_step, lf.Aligned(create(merging)))}
    naive_model = timm.create_model(name)
    if not isinstance(naive_model, Naive.KNOWN):
        return ways
    naive = Naive(naive_model)

    def naive_step() -> Tensor:
        mix = cutmix(images, torch.Generator().manual_seed(1))
        logits, target = naive(mix.apply(images), mix, y)
        return F.cross_entropy(logits, target)

    return {**ways, "naive dense": naive_step}


def cpu_seconds(step: Step) -> float:
    start = time.process_time()
    step().backward()
    return time.process_time() - start


class Stopwatch:
    """Counts the CPU time that `Aligned` spends in its hooks on moving labels."""

    def __init__(self) -> None:
        self.seconds = 0.0
        move = Follower.move

        def timed(*arguments: Any) -> None:
            start = time.process_time()
            move(*arguments)
            self.seconds += time.process_time() - start

        Follower.move = timed  # type: ignore[method-assign, assignment]

    def read(self) -> float:
        seconds, self.seconds = self.seconds, 0.0
        return seconds


def peak_bytes(step: Step) -> int:
    """The most that a step holds at once, from the allocator's own records."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step().backward()
    held = peak = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def measure(name: str, batch: int, rounds: int, merge: int, watch: Stopwatch) -> dict[str, dict[str, float]]:
    ways = steps(name, batch, merge)
    for step in ways.values():  # once, so that gradients exist and memory is counted alike
        step().backward()
    memory = {way: peak_bytes(step) for way, step in ways.items()}
    watch.read()
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    labels: dict[str, list[float]] = {way: [] for way in ways}
    for i in range(rounds):
        for way in list(ways)[:: -1 if i % 2 else 1]:  # turn about, so that a drift hits all alike
            seconds[way].append(cpu_seconds(ways[way]))
            moving = watch.read()
            labels[way].append(moving / (seconds[way][-1] - moving))
    results = {}
    for way in ways:
        ratios = [own / plain for own, plain in zip(seconds[way], seconds["plain"], strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        results[way] = {
            "milliseconds": 1000 * statistics.median(seconds[way]),
            "time": statistics.median(ratios),
            "low": low,
            "high": high,
            "labels": statistics.median(labels[way]),
            "memory": memory[way] / memory["plain"],
        }
    return results


def plot(results: dict[str, dict[str, dict[str, float]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(2 + 1.4 * len(results), 3.2), layout="constrained")
    width, ways = 0.38, ["aligned", "naive dense"]
    for i, way in enumerate(ways):
        known = {j: result[way] for j, result in enumerate(results.values()) if way in result}
        rows = list(known.values())
        medians = [row["time"] for row in rows]
        spread = [[row["time"] - row["low"] for row in rows], [row["high"] - row["time"] for row in rows]]
        places = [j + (i - 0.5) * width for j in known]
        bars = axes.bar(places, medians, width, yerr=spread, capsize=3, label=way, color=["#2a7f62", "#b8b8b8"][i])
        axes.bar_label(bars, fmt="%.3f", padding=4)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(range(len(results)), ["_".join(name.split("_")[:2]) for name in results])
    axes.set(ylabel="step time, plain CutMix = 1", ylim=(0.9, None))
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS, help="timm model names")
    parser.add_argument("--batch", type=int, default=8, help="images in a step")
    parser.add_argument("--rounds", type=int, default=15, help="steps of each kind")
    parser.add_argument(
        "--merge-tokens", type=int, default=0, help="also steps in which each block merges so many tokens"
    )
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for JSON and plot")
    args = parser.parse_args()

    torch.set_num_threads(1)
    results, watch = {}, Stopwatch()
    print(f"{'model':32}{'step':14}{'ms':>9}{'time':>9}{'quartiles':>18}{'labels':>9}{'memory':>9}")
    for name in args.models:
        results[name] = measure(name, args.batch, args.rounds, args.merge_tokens, watch)
        for way, row in results[name].items():
            quartiles = f"{row['low']:.3f} to {row['high']:.3f}"
            print(
                f"{name:32}{way:14}{row['milliseconds']:9.0f}{row['time']:9.3f}{quartiles:>18}"
                f"{row['labels']:9.3f}{row['memory']:9.3f}"
            )
    args.out.mkdir(parents=True, exist_ok=True)
    settings = {"batch": args.batch, "rounds": args.rounds, "torch": torch.__version__, "timm": timm.__version__}
    (args.out / "step_overhead.json").write_text(json.dumps({"settings": settings, "results": results}, indent=2))
    plot(results, args.out / "step_overhead.png")
    print(f"wrote {args.out / 'step_overhead.json'} and {args.out / 'step_overhead.png'}")


if __name__ == "__main__":
    main()
