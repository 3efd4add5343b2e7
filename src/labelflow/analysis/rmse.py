"""How far the label that arrives is from CutMix's λ (TL-Align, Figure 3).

Shapes: B batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from labelflow.align import Student
from labelflow.mix import Mix
from labelflow.targets import TLAlign, TransMix

LARGE = 0.05


@dataclass(frozen=True)
class Rmse:
    """Root mean squares of (share in the target - λ) over mixed images."""

    tl_align: float
    transmix: float
    large: float  # the part of images whose TL-Align target differs by more than LARGE


@torch.no_grad()
def alignment_rmse(model: nn.Module, batches: Sequence[tuple[Tensor, Mix]]) -> Rmse:
    """Of batches of images (B, 3, H, W), and how they are mixed."""
    trans = TransMix()
    students: list[Student] = [TLAlign().student(model), trans.student(model)]
    gaps: list[list[Tensor]] = [[], []]
    for images, mix in batches:
        mixed = mix.apply(images)
        flows = [student(mixed, mix).flow for student in students]
        assert flows[0] is not None
        assert flows[1] is not None
        gaps[0].append(flows[0].heads[..., 0].mean(1) - mix.lam)
        gaps[1].append(trans.share(flows[1], mix) - mix.lam)
    aligned, transmix = (torch.cat(gap) for gap in gaps)
    return Rmse(
        float(aligned.square().mean().sqrt()),
        float(transmix.square().mean().sqrt()),
        float((aligned.abs() > LARGE).float().mean()),
    )
