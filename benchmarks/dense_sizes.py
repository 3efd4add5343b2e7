"""Parameters and multiply-adds of the segmenters and detectors of both papers, beside what their tables print.

    python benchmarks/dense_sizes.py

The models are those of the recipes. Multiply-adds are counted as the papers do: of a segmenter at 512×2048 pixels
without its auxiliary head, which parameters include; of a detector at 1280×800 pixels, with 1000 boxes in each of three
box heads and 100 in each of three mask heads. Nothing is computed: shapes are enough. Prints a Markdown table.
"""

import argparse
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from labelflow.recipes import DETECTORS, SEGMENTERS
from labelflow.tasks.detect.heads import BOX_SIDE, MASK_SIDE
from labelflow.tasks.detect.task import build_detector
from labelflow.tasks.segment.task import build_segmenter

CLOSE = 0.02  # a difference that needs no explanation

# recipe: parameters in millions, FLOPs (multiply-adds) in billions, as printed
PRINTED: dict[str, tuple[int, int | None]] = {
    "upernet_deit_small": (58, 1032),  # TL-Align, Table 3
    "upernet_swin_tiny": (60, 945),
    "upernet_swin_small": (81, 1038),
    "upernet_swin_base": (121, 1188),
    "fcn_lvvit_s": (30, None),  # Token Labeling, Tables 5 and 6
    "upernet_lvvit_s": (44, None),
    "upernet_lvvit_m": (77, None),
    "upernet_lvvit_l": (209, None),
    "cascade_swin_tiny": (86, 745),  # TL-Align, Table 4
    "cascade_swin_small": (107, 838),
    "cascade_swin_base": (145, 982),
}


class Costs(NamedTuple):
    parameters: float  # in millions
    multiply_adds: float  # in billions
    without_attention: float


def segmenter_costs(name: str) -> Costs:
    recipe = SEGMENTERS[name].recipe
    with torch.device("meta"), torch.no_grad():
        model = build_segmenter(recipe, {"model": recipe.backbone, "label_names": range(150)}).eval()
        with FlopCounterMode(display=False) as counter:
            model(torch.empty(1, 3, 512, 2048))
    return _costs(model, counter)


def detector_costs(name: str) -> Costs:
    recipe = DETECTORS[name].recipe
    with torch.device("meta"), torch.no_grad():
        model = build_detector(recipe, {"model": recipe.backbone, "label_names": range(80)}).eval()
        with FlopCounterMode(display=False) as counter:
            model.rpn.head(list(model.backbone(torch.empty(1, 3, 800, 1280)).values()))
            for stage in model.roi_heads.stages:
                stage.box(torch.empty(1000, recipe.sizes.channels, BOX_SIDE, BOX_SIDE))
                stage.mask(torch.empty(100, recipe.sizes.channels, MASK_SIDE, MASK_SIDE))
    return _costs(model, counter)


def _costs(model: nn.Module, counter: FlopCounterMode) -> Costs:
    parts = counter.get_flop_counts()
    attention = sum(sum(counts.values()) for name, counts in parts.items() if name.endswith(".attn"))
    whole = counter.get_total_flops()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Costs(parameters / 1e6, whole / 2e9, (whole - attention) / 2e9)


def note(found: Costs, printed: float | None) -> str:
    """What there is to say where the paper's multiply-adds are not close."""
    if printed is None:
        return "no FLOPs printed"
    if abs(found.multiply_adds / printed - 1) <= CLOSE:
        return ""
    if abs(found.without_attention / printed - 1) <= CLOSE:
        return f"{found.without_attention:.1f} without attention, which the paper seems to leave out"
    return "not explained"


def difference(found: float, printed: float | None) -> str:
    return f"{100 * (found / printed - 1):+.1f} %" if printed else ""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=list(PRINTED), choices=list(PRINTED), metavar="RECIPE")
    options = parser.parse_args(arguments)

    print("| recipe | parameters (M) | paper | | multiply-adds (G) | paper | | |")
    print("|---|---|---|---|---|---|---|---|")
    for name in options.recipes:
        found = segmenter_costs(name) if name in SEGMENTERS else detector_costs(name)
        millions, billions = PRINTED[name]
        parameters = f"{found.parameters:.2f} | {millions} | {difference(found.parameters, millions)}"
        products = f"{found.multiply_adds:.1f} | {billions or ''} | {difference(found.multiply_adds, billions)}"
        print(f"| {name} | {parameters} | {products} | {note(found, billions)} |")


if __name__ == "__main__":
    main()
