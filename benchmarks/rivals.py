"""How fast are the ways to train a DeiT-S? The last column of TL-Align's Table 2, as ratios to CutMix.

    python benchmarks/rivals.py --batch 8 --rounds 7

Updates of all methods take turns in one run, on the same images: mixing, what a mixer has to see first, the target,
backward and the optimiser. Time is the CPU time of one thread on a CPU, and the clock's on a GPU. Attentive-CutMix runs
the paper's ResNet-50, with random weights: they change no time. Prints a table, and writes out/rivals.json.
"""

import argparse
import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from labelflow.comparison import Speed, measure_speeds
from labelflow.recipes import find
from labelflow.recipes.methods import find_method

PAPER = {"tl_align": 0.97, "transmix": 1.00, "saliencymix": 0.98, "attentive_cutmix": 0.74, "puzzlemix": 0.43}
ATTENTIVE = "attentive_cutmix=attentive_cutmix(model='resnet50', init='')/plain"
ROWS = ("cutmix", "tl_align", "transmix", "saliencymix", ATTENTIVE, "puzzlemix")
LATER = (
    "puzzlemix_full=puzzlemix(size=1.0)/plain",
    "smmix=smmix/sm_mix",
    "tokenmix=tokenmix(patch={patch})/plain",
    "mixpro=maskmix(patch={patch})/pal",
    "guided_mixup=guided_mixup/plain",
    "guided_gradient=guided_mixup(by='gradient')/plain",
    "resizemix",
    "recursivemix",
)


def measure(methods: Iterable[str], model: str, batch: int, rounds: int, **changes: Any) -> dict[str, Speed]:
    """The speeds of methods, such as those of ROWS, relative to the first; changes: to DeiT-S's recipe."""
    recipe = find("deit_small_cutmix").recipe.change(
        model=model, source=f"world(train={batch}, val=8)", micro_batch=batch, repeats=1, workers=0, **changes
    )
    found = [find_method(text) for text in methods]
    return measure_speeds({method.name: method.of(recipe) for method in found}, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="deit_small_patch16_224")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--later",
        action="store_true",
        help="with SMMix, MixPro, GuidedMixup, ResizeMix, RecursiveMix, TokenMix's mixing, and a full-size Puzzle-Mix",
    )
    parser.add_argument("--out", type=Path, default=Path("out"))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        torch.set_num_threads(1)

    speeds = measure(ROWS + LATER * options.later, options.model, options.batch, options.rounds)
    print(f"{options.model}, batch {options.batch}, {options.rounds} rounds")
    print(f"{'':20}{'images/s':>10}{'quartiles':>20}{'paper':>8}{'ms':>9}")
    for name, speed in speeds.items():
        paper = f"{PAPER[name]:.2f}" if name in PAPER else ""
        quartiles = f"{speed.low:.3f} to {speed.high:.3f}"
        print(f"{name:20}{speed.ratio:>10.3f}{quartiles:>20}{paper:>8}{1000 * speed.seconds:>9.0f}")
    options.out.mkdir(exist_ok=True)
    (options.out / "rivals.json").write_text(json.dumps({name: asdict(one) for name, one in speeds.items()}, indent=2))


if __name__ == "__main__":
    main()
