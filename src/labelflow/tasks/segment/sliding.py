"""From a model to the class of every pixel: whole images, sliding windows, several scales and flips.

A model here is any function from images (B, 3, h, w) to logits (B, C, h, w).
Shapes: B batch, C classes, H×W pixels of the original image.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from labelflow.tasks.dense.layers import fit
from labelflow.tasks.segment.settings import Inference

Model = Callable[[Tensor], Tensor]


def classify(model: Model, images: Tensor, how: Inference | None = None, rows: int = 32) -> Tensor:
    """The class of each pixel of the images, (B, H, W), whose probability is greatest in the mean over scales and
    flips. Probabilities are too many to hold where images are large: they are made for some rows at a time.

    >>> def colours(images): return images  # a model that takes the three channels for the logits of three classes
    >>> classify(colours, torch.eye(3).view(1, 3, 1, 3), Inference(short=1))
    tensor([[[0, 1, 2]]])
    """
    height, width = images.shape[-2:]
    answers = list(_answers(model, images, how or Inference()))
    found = images.new_empty((len(images), height, width), dtype=torch.long)
    for top in range(0, height, rows):
        bottom = min(top + rows, height)
        strips = (_strip(logits, (height, width), top, bottom).softmax(1) for logits in answers)
        found[:, top:bottom] = _sum(strips).argmax(1)
    return found


def slide(model: Model, images: Tensor, window: int, stride: int) -> Tensor:
    """The logits of windows, averaged where they overlap: (B, 3, H, W) -> (B, C, H, W).

    The last window of a row ends with the image. An image smaller than a window is passed to the model unchanged.
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


def _answers(model: Model, images: Tensor, how: Inference) -> Iterator[Tensor]:
    """The logits at each scale, (B, C, h, w), and of the mirrored image, mirrored back."""
    size = (images.shape[-2], images.shape[-1])
    for scale in how.scales:
        seen = resize(images, fit(size, how.short, how.long, scale))
        yield _ask(model, seen, how)
        if how.flips:
            yield _ask(model, seen.flip(-1), how).flip(-1)


def _strip(logits: Tensor, size: tuple[int, int], top: int, bottom: int) -> Tensor:
    """The rows `top` to `bottom` of logits (B, C, h, w) that are resized to (H, W), bilinearly: (B, C, rows, W)"""
    (height, width), own = size, logits.shape[-2]
    centres = torch.arange(top, bottom, device=logits.device) + 0.5
    places = (centres * (own / height) - 0.5).clamp(0, own - 1)  # in rows of the logits
    above = places.long()
    below = (above + 1).clamp_max(own - 1)
    weights = (places - above)[:, None]
    first, second = (logits.index_select(-2, rows).float() for rows in (above, below))
    mixed = torch.lerp(first, second, weights)
    return F.interpolate(mixed, (bottom - top, width), mode="bilinear", align_corners=False)


def _sum(parts: Iterator[Tensor]) -> Tensor:
    """Holds two of them at a time."""
    total = next(parts)
    for part in parts:
        total += part
    return total


def _ask(model: Model, images: Tensor, how: Inference) -> Tensor:
    if not how.window:
        return model(images)
    return slide(model, images, how.window, how.stride or max(1, round(how.window * 2 / 3)))
