"""How far the label that arrives is from CutMix's λ (TL-Align, Figure 3).

Shapes: B batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from labelflow.align import Aligned, Student
from labelflow.analysis.images import LabelledImage
from labelflow.analysis.samples import batch_of
from labelflow.chance import generator
from labelflow.classifier import Classifier
from labelflow.mix import Mix
from labelflow.mixers import make_mixer, mix_batch
from labelflow.targets import TLAlign, TransMix

LARGE = 0.05
BATCH = 64  # images


@dataclass(frozen=True)
class Rmse:
    """Root mean squares of (share in the target - λ) over mixed images."""

    tl_align: float
    transmix: float
    large: float  # the part of images whose TL-Align target differs by more than LARGE


def mixed_batches(
    classifier: Classifier, images: Sequence[LabelledImage], mixer: str = "cutmix(alpha=1.0, per='sample')"
) -> list[tuple[Tensor, Mix]]:
    """Images, and how they are mixed: each draw has a box of its own for every image, where the mixer can do that."""
    if len(images) < 2:
        raise ValueError("to mix, there must be at least two images")
    making = make_mixer(mixer)
    batches = []
    for start in range(0, len(images) - 1, BATCH):
        batch = batch_of(classifier, images[start : start + BATCH])
        mix, _ = mix_batch(making, batch, generator(0, start))
        batches.append((batch.images, replace(mix, at="image")))
    return batches


@torch.no_grad()
def fluctuation(classifier: Classifier, images: Sequence[LabelledImage]) -> float:
    """The root mean square of (own share that arrives - λ), for images that CutMix has mixed."""
    aligned = Aligned(classifier.model)
    batches = mixed_batches(classifier, images)
    gaps = [aligned(mix.apply(images), mix.share)[1] - mix.lam for images, mix in batches]
    return float(torch.cat(gaps).square().mean().sqrt())


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
