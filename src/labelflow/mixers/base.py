"""What mixers have in common: partners, and random draws that come from a generator.

A mixer is called with images (B, C, H, W) and returns a `Mix`; it reads the images' shape and device and changes
nothing. Everything random is drawn on the generator's device, the CPU if there is none, so that the same seed gives the
same mix on any device.

A mixer that needs to know what is important in an image takes `importance` (B, h, w), too, and names in `guide` where
it comes from: the image itself, a CNN, a gradient, attention (labelflow.guides).
"""

import math
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Generator, Tensor

from labelflow.mix import Mix

Pairing = Literal["flip", "permute"]
Per = Literal["batch", "pair", "sample"]


class Mixer(Protocol):
    def __call__(self, images: Tensor, generator: Generator | None = None) -> Mix: ...


@runtime_checkable
class Remembering(Protocol):
    """A mixer that pastes from the batch before, as it was mixed, where there is one."""

    remembers: bool

    def __call__(self, images: Tensor, generator: Generator | None = None, *, earlier: Tensor | None = None) -> Mix: ...


def check_images(images: Tensor, generator: Generator | None) -> tuple[int, int, int]:
    """B, H, W"""
    if generator is not None and not isinstance(generator, Generator):
        raise ValueError(
            f"a mixer takes images and a generator, not a {type(generator).__name__}; "
            "labels come later, with mix.blend (labelflow.Mixup takes both, as timm's does)"
        )
    if images.ndim != 4:
        raise ValueError(f"a mixer takes images of shape (B, C, H, W), not {tuple(images.shape)}")
    return images.shape[0], images.shape[2], images.shape[3]


def check_importance(importance: Tensor, images: Tensor) -> Tensor:
    """(B, h, w), of any size, as float32 ≥ 0; NaN becomes 0."""
    if importance.ndim != 3 or len(importance) != len(images):
        raise ValueError(
            f"importance must have the shape (B, h, w) with B = {len(images)}, not {tuple(importance.shape)}"
        )
    return importance.detach().to(images.device, torch.float32).nan_to_num(0.0).clamp(min=0.0)


def check_alpha(alpha: float) -> float:
    if not (alpha > 0 and math.isfinite(alpha)):
        raise ValueError(f"alpha, of Beta(alpha, alpha), must be a positive number, not {alpha}; NoMix() does not mix")
    return alpha


def check_pairing(pairing: Pairing) -> Pairing:
    if pairing not in ("flip", "permute"):
        raise ValueError(f"pairing must be 'flip' (first with last) or 'permute' (at random), not {pairing!r}")
    return pairing


def check_per(per: Per, pairing: Pairing = "flip") -> Per:
    if per not in ("batch", "pair", "sample"):
        raise ValueError(f"per must be 'batch', 'pair' or 'sample', for what one draw is, not {per!r}")
    if per == "pair" and pairing != "flip":
        raise ValueError(f"per='pair' needs pairing='flip', where two images are each other's partner, not {pairing!r}")
    return per


def partners(pairing: Pairing, batch: int, device: torch.device, generator: Generator | None) -> Tensor:
    """Who is mixed with whom, (B,). In an odd batch's middle, "flip" pairs an image with itself."""
    if pairing == "flip":
        return torch.arange(batch - 1, -1, -1, device=device)
    return torch.randperm(batch, generator=generator, device=_device(generator)).to(device, non_blocking=True)


def draws(per: Per, batch: int) -> int:
    """How many draws a batch takes."""
    return {"batch": 1, "pair": (batch + 1) // 2, "sample": batch}[per]


def spread(drawn: Tensor, batch: int) -> Tensor:
    """To each image what was drawn for it, for its pair or for all: (count, ...), see `draws`, -> (B, ...)"""
    if len(drawn) in (1, batch):
        return drawn.expand(batch, *drawn.shape[1:])
    return torch.cat([drawn, drawn[: batch // 2].flip(0)])


def draw_beta(alpha: float, count: int, generator: Generator | None) -> Tensor:
    """Beta(α, α), (count,) float64, on the generator's device."""
    # What torch.distributions.Beta calls, which takes no generator itself.
    concentration = torch.full((count, 2), alpha, dtype=torch.float64, device=_device(generator))
    return torch._sample_dirichlet(concentration, generator)[:, 0]


def draw_uniform(shape: tuple[int, ...], generator: Generator | None) -> Tensor:
    """Uniform on [0, 1), float64, on the generator's device."""
    return torch.rand(shape, generator=generator, dtype=torch.float64, device=_device(generator))


def _device(generator: Generator | None) -> torch.device:
    return torch.device("cpu") if generator is None else generator.device
