"""GuidedMixup (Kang and Kim, AAAI 2023): every pixel is mixed as much as it matters in both images, and images are
paired whose important parts are apart.

Shapes: B batch, H×W pixels.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from labelflow.guides.saliency import blurred
from labelflow.mix import Mix
from labelflow.mixers.base import check_images, check_importance


class GuidedMixup:
    """A pixel's own share is s/(s + s'), where s is how much of the image's importance lies there, smoothed, and s' the
    partner's. Partners form one cycle through the batch, which always goes on to the image whose map is furthest away.
    Nothing is drawn: an image's λ is the mean of its shares. Batches that stay unmixed are a mixture,
    "0.5*guided_mixup + 0.5*none".

    by: who tells what matters, "saliency" of the image alone (the paper's SR), or the "gradient" of the model (AP).
    size: of the images that the gradient is taken of, as a part of theirs; 1.0 is the paper's.

    >>> images, importance = torch.rand(8, 3, 224, 224), torch.rand(8, 224, 224)
    >>> mix = GuidedMixup()(images, importance=importance)
    """

    def __init__(self, by: Literal["saliency", "gradient"] = "saliency", *, size: float = 0.5) -> None:
        guides = {"saliency": "saliency(kind='magnitude')", "gradient": f"gradient(size={size})"}
        if by not in guides:
            raise ValueError(f"by must be 'saliency' or 'gradient', not {by!r}")
        self.guide = guides[by]

    def __call__(self, images: Tensor, generator: Generator | None = None, *, importance: Tensor) -> Mix:
        _, height, width = check_images(images, generator)
        maps = important_parts(check_importance(importance, images), height, width)
        partner = one_cycle(torch.cdist(maps.flatten(1), maps.flatten(1), compute_mode="donot_use_mm_for_euclid_dist"))
        both = maps + maps[partner]
        return Mix(partner, (maps / both).where(both > 0, 0.5).unsqueeze(1))


def important_parts(importance: Tensor, height: int, width: int) -> Tensor:
    """What part of an image's importance lies at each pixel, smoothed by a Gaussian (7 pixels, σ = 3): (B, h, w) ->
    (B, H, W), of sum 1; the same everywhere if nothing is important."""
    importance = importance / importance.amax((1, 2), keepdim=True).clamp(min=1e-30)
    if importance.shape[1:] != (height, width):
        importance = F.interpolate(importance.unsqueeze(1), (height, width), mode="bilinear").squeeze(1)
    maps = blurred(importance, 7, 3)
    total = maps.sum((1, 2), keepdim=True)
    return (maps / total).where(total > 0, 1 / (height * width))


def one_cycle(distances: Tensor) -> Tensor:
    """The partner of each image, (B,), by the distances between all, (B, B). From the image that is furthest from
    another one on, the partner is the furthest that had no turn yet, the first of equals; the last one's is the first.

    B steps, one after another; all of them on the device, so that the host need not wait.
    """
    left = distances.clone().fill_diagonal_(-torch.inf)
    turns = [left.amax(1).argmax(0, keepdim=True)]  # (1,) each
    for _ in range(len(distances) - 1):
        left.index_fill_(1, turns[-1], -torch.inf)
        turns.append(left[turns[-1]].argmax(1))
    order = torch.cat(turns)
    return torch.empty_like(order).scatter_(0, order, order.roll(-1))
