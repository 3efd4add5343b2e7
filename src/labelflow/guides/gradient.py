"""Where the loss of the model that is trained changes most with the pixels: Puzzle-Mix's saliency, and GuidedMixup's.

Shapes: B batch, C classes, H×W pixels.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import Format, PatchEmbed
from torch import Tensor, nn

from labelflow.align import evaluating
from labelflow.guides.base import Guidance, UnmixedBatch
from labelflow.tokens import embedding_of

TORCHS = frozenset(vars(nn.Module()))  # attributes of every module


class Gradient:
    """√ of the mean over colours of (∂ loss / ∂ pixel)², of unmixed images, in eval mode. It leaves nothing behind: no
    parameter's gradient, no buffer, no random number.

    size: of the images it is taken of, as a part of theirs. A whole pass costs two thirds of a training step; at half
    the size it costs a quarter of that. ViTs get position embeddings resampled to it, convolutional networks take any
    size, and a model that refuses a smaller size (a Swin, whose windows would not fit) sees the images
    unchanged, with a warning.
    """

    parameters = 0

    def __init__(self, size: float = 0.5) -> None:
        if not 0 < size <= 1:
            raise ValueError(f"size must be a part of the images' size, 0 < size <= 1, not {size}")
        self.size = size
        self.refused: set[tuple[int, tuple[int, int]]] = set()  # models that do not take images of that size

    def __call__(self, batch: UnmixedBatch) -> Guidance:
        model = batch.student.model
        small = _smaller(model, (batch.images.shape[2], batch.images.shape[3]), self.size)
        if small != batch.images.shape[2:] and (id(model), small) not in self.refused:
            images = F.interpolate(batch.images.detach(), small, mode="area")
            try:
                with _unchanged(model):
                    _to_any_size(model)
                    return Guidance(_gradient(batch._replace(images=images))[0])
            except torch.OutOfMemoryError:
                raise
            except (AssertionError, RuntimeError, ValueError) as error:  # the ways in which models refuse a size
                self.refused.add((id(model), small))
                warnings.warn(
                    f"{type(model).__name__} does not take images of {small[0]}×{small[1]} pixels, so the gradient "
                    f"that guides the mixer is computed at full size ({type(error).__name__}: {error})",
                    stacklevel=2,
                )
        return Guidance(*_gradient(batch))


def _gradient(batch: UnmixedBatch) -> tuple[Tensor, Tensor]:
    """Its strength (B, H, W), and the logits (B, C)."""
    with torch.enable_grad(), _unchanged(batch.student.model), evaluating(batch.student):
        images = batch.images.detach().requires_grad_()
        logits = batch.student(images).logits
        # Summed: a mean over the batch would make half precision underflow sooner.
        loss = batch.loss(logits, batch.classes).sum()
        (gradient,) = torch.autograd.grad(loss, images)
    return gradient.float().square().mean(1).sqrt(), logits.detach()


def _smaller(model: nn.Module, shape: tuple[int, int], size: float) -> tuple[int, int]:
    """That part of a shape, in whole patches."""
    embedding = embedding_of(model)
    patch = embedding.patch_size if isinstance(embedding, PatchEmbed) else (1, 1)
    height, width = (max(round(whole * size / side), 1) * side for whole, side in zip(shape, patch, strict=True))
    return min(height, shape[0]), min(width, shape[1])


def _to_any_size(model: nn.Module) -> None:
    """A timm ViT resamples its position embeddings to the images' size from now on, as with dynamic_img_size."""
    embedding = getattr(model, "patch_embed", None)
    resamples = hasattr(model, "pos_embed") and hasattr(model, "dynamic_img_size")  # a Swin has the second alone
    if isinstance(embedding, PatchEmbed) and resamples:
        model.dynamic_img_size = True  # type: ignore[assignment]
        embedding.strict_img_size, embedding.flatten, embedding.output_fmt = False, False, Format.NHWC


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Afterwards each module's own attributes are as they were. In eval mode some fill a cache (LeViT), and some keep
    in mind what size of images they saw last (transformers' Swin).
    """
    before = [(module, _attributes(module)) for module in model.modules()]
    try:
        yield
    finally:
        for module, attributes in before:
            for name, (value, entries) in attributes.items():
                vars(module)[name] = value
                if entries is not None:
                    value.clear()
                    value.update(entries)


def _attributes(module: nn.Module) -> dict[str, tuple[Any, dict[Any, Any] | None]]:
    """What a module is made of besides what torch keeps, and the entries of what is a dictionary."""
    own = {name: value for name, value in vars(module).items() if name not in TORCHS}
    return {name: (value, dict(value) if type(value) is dict else None) for name, value in own.items()}
