"""From a model to the scores of every pixel: whole images, sliding windows, several scales and flips.

A model here is any function from images (B, 3, h, w) to logits (B, C, h, w).
Shapes: B batch, C classes, H×W pixels of the original image.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

Model = Callable[[Tensor], Tensor]
SCALES = (0.75, 1.0, 1.25, 1.5, 1.75)  # Token Labeling's multi-scale test


@dataclass(frozen=True)
class Inference:
    """How a model is asked."""

    short: int = 512
    """Images are resized until their shorter side is this long, …"""
    long: int = 2048
    """… or their longer side that long, whichever is less."""
    window: int = 0
    """Side of a sliding window; 0: the whole image at once."""
    stride: int = 0
    """How far windows are apart; 0: two thirds of one."""
    scales: tuple[float, ...] = (1.0,)
    """Sizes to ask at, as parts of the above. The scores are averaged."""
    flips: bool = False
    """Ask about the mirrored image, too."""

    def __post_init__(self) -> None:
        if self.short < 1 or self.long < self.short:
            raise ValueError(f"short and long sides must be 1 ≤ short ≤ long, not {self.short} and {self.long}")
        if self.window < 0 or not 0 <= self.stride <= self.window:
            raise ValueError(f"a stride must not leave gaps: 0 to {self.window}, the window, not {self.stride}")
        if not self.scales or min(self.scales) <= 0:
            raise ValueError(f"scales must be greater than 0, one at least, not {self.scales}")


def predict(model: Model, images: Tensor, how: Inference | None = None) -> Tensor:
    """The probabilities of the classes at each pixel of the images, (B, C, H, W): their mean over scales and flips.

    >>> def colours(images): return images  # a model that takes the three channels for the logits of three classes
    >>> predict(colours, torch.zeros(1, 3, 8, 8), Inference(short=16))[0, :, 0, 0]
    tensor([0.3333, 0.3333, 0.3333])
    """
    how = how or Inference()
    size = (images.shape[-2], images.shape[-1])
    total: Tensor | None = None
    for scale in how.scales:
        seen = resize(images, fit(size, how.short, how.long, scale))
        for mirrored in (False, True) if how.flips else (False,):
            logits = _ask(model, seen.flip(-1) if mirrored else seen, how).float()
            logits = logits.flip(-1) if mirrored else logits
            found = F.interpolate(logits, size, mode="bilinear", align_corners=False).softmax(1)
            total = found if total is None else total.add_(found)
    assert total is not None
    return total.div_(len(how.scales) * (1 + how.flips))


def fit(size: tuple[int, int], short: int, long: int, scale: float = 1.0) -> tuple[int, int]:
    """The size at which (H, W) fits into short × long, times a scale, with its aspect kept.

    >>> fit((240, 320), 512, 2048), fit((100, 800), 512, 2048), fit((240, 320), 512, 2048, scale=0.5)
    ((512, 683), (256, 2048), (256, 341))
    """
    factor = scale * min(short / min(size), long / max(size))
    return max(1, int(size[0] * factor + 0.5)), max(1, int(size[1] * factor + 0.5))


def slide(model: Model, images: Tensor, window: int, stride: int) -> Tensor:
    """The logits of windows, averaged where they overlap: (B, 3, H, W) -> (B, C, H, W).

    The last window of a row ends with the image. An image smaller than a window is asked about as it is.
    """
    height, width = images.shape[-2:]
    total: Tensor | None = None
    windows = images.new_zeros((1, 1, height, width), dtype=torch.float32)
    for top in starts(height, window, stride):
        for left in starts(width, window, stride):
            rows, columns = slice(top, top + window), slice(left, left + window)
            logits = model(images[..., rows, columns]).float()
            if total is None:
                total = logits.new_zeros((*logits.shape[:2], height, width))
            total[..., rows, columns] += logits
            windows[..., rows, columns] += 1
    assert total is not None
    return total / windows


def starts(length: int, window: int, stride: int) -> Sequence[int]:
    """Where windows along a side begin: each is inside, all together cover it.

    >>> starts(1000, window=512, stride=341)
    [0, 341, 488]
    """
    if not 0 < stride <= window:
        raise ValueError(f"a stride of {stride} leaves gaps between windows of {window}: choose 1 to {window}")
    last = max(0, length - window)
    return [*range(0, last, stride), last]


def resize(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Bilinear, without aliases where they shrink: (B, 3, H, W) -> (B, 3, h, w)."""
    if images.shape[-2:] == size:
        return images
    return F.interpolate(images, size, mode="bilinear", align_corners=False, antialias=True)


def _ask(model: Model, images: Tensor, how: Inference) -> Tensor:
    if not how.window:
        return model(images)
    return slide(model, images, how.window, how.stride or max(1, round(how.window * 2 / 3)))
