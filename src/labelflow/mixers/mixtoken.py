"""MixToken (Token Labeling, Section 3.3): a box of the partner's tokens, pasted after the patch embedding."""

from dataclasses import replace

from torch import Generator, Tensor

from labelflow.mix import Mix
from labelflow.mixers.base import Pairing
from labelflow.mixers.cutmix import CutMix


class MixToken:
    """CutMix on the grid of tokens instead of the image, so that no token has seen both images (Eqs. 5 to 7).

    alpha: of the Beta distribution that boxes are drawn from; 1.0 is uniform.
    patch: side of a token in pixels (16 for LV-ViT, DeiT and T2T-ViT).
    per_sample, pairing: see `CutMix`.

    >>> import torch
    >>> MixToken(alpha=1.0)(torch.rand(8, 3, 224, 224)).at
    'tokens'
    """

    def __init__(
        self, alpha: float = 1.0, *, patch: int = 16, per_sample: bool = False, pairing: Pairing = "flip"
    ) -> None:
        self.alpha = alpha
        self.boxes = CutMix(alpha, grid=patch, per_sample=per_sample, pairing=pairing)

    def __call__(self, images: Tensor, generator: Generator | None = None) -> Mix:
        return replace(self.boxes(images, generator), at="tokens")
