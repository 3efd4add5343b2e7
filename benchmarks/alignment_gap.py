"""How far is what reaches the classifier from CutMix's λ? The paper's Figure 3, as numbers, for runs of one's own.

    python benchmarks/alignment_gap.py runs/quickstart runs/quickstart_cutmix --pairs 512

For each run: the root mean square of (share that reaches the classifier - λ) over mixed evaluation images, of its
trained model and of the same model with random weights; the same for TransMix's share; and how often the gap is larger
than 0.05. Boxes are CutMix's with α = 1. Prints a table, and writes out/alignment_gap.json.
"""

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor

from labelflow.align import Student
from labelflow.chance import generator
from labelflow.data import Stream, eval_transform, open_source
from labelflow.data.loader import fixed_batches
from labelflow.data.transforms import as_view
from labelflow.data.views import Draw
from labelflow.mixers import CutMix
from labelflow.models.create import create
from labelflow.targets import TLAlign, TransMix
from labelflow.tasks import load_run


@torch.no_grad()
def gaps(student: Student, images: list[Tensor]) -> Tensor:
    """Share at the classifier - λ, for each mixed image."""
    found = []
    for number, batch in enumerate(images):
        mix = CutMix(alpha=1.0, per_sample=True)(batch, generator(0, number))
        flow = student(mix.apply(batch), mix).flow
        assert flow is not None
        found.append(flow.heads[..., 0].mean(1) - mix.lam)
    return torch.cat(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--pairs", type=int, default=512)
    parser.add_argument("--out", type=Path, default=Path("out"))
    options = parser.parse_args()

    table = {}
    print(f"{'':36}{'TL-Align':>10}{'> 0.05':>8}{'random':>8}{'TransMix':>10}")
    for folder in options.runs:
        loaded = load_run(folder, weights="last")
        data, card = loaded.recipe.data, json.loads((folder / "model.json").read_text())
        source = open_source(data, "val")
        assert not isinstance(source, Stream)
        chosen = torch.randperm(len(source), generator=generator(0))[: options.pairs].tolist()  # of all classes
        batches = [
            [Draw(index, 0, index) for index in chosen[start : start + 64]] for start in range(0, len(chosen), 64)
        ]
        images = [batch.images for batch in fixed_batches(source, as_view(eval_transform(data)), data, batches)]
        torch.manual_seed(0)
        fresh = create(card["model"], **card["arguments"]).eval()
        trained = gaps(TLAlign().student(loaded.model), images)
        row = {
            "tl_align": trained.square().mean().sqrt(),
            "above": (trained.abs() > 0.05).float().mean(),
            "random weights": gaps(TLAlign().student(fresh), images).square().mean().sqrt(),
            "transmix": gaps(TransMix().student(loaded.model), images).square().mean().sqrt(),
        }
        table[folder.name] = {name: round(float(value), 4) for name, value in row.items()}
        first, above, random, last = table[folder.name].values()
        print(f"{folder.name:36}{first:>10.3f}{above:>8.2f}{random:>8.3f}{last:>10.3f}", flush=True)
    options.out.mkdir(exist_ok=True)
    (options.out / "alignment_gap.json").write_text(json.dumps(table, indent=2))


if __name__ == "__main__":
    main()
