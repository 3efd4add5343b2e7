"""Float32 where a device, or autocast, would round more coarsely."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right in float32, also on devices that are allowed to round what they multiply to TF32, 11 bits: each
    factor is split into 8 bits, which stay, and the rest."""
    if left.device.type == "cpu":
        return left @ right
    coarse_left, coarse_right = left.bfloat16().float(), right.bfloat16().float()
    return coarse_left @ coarse_right + (left - coarse_left) @ coarse_right + left @ (right - coarse_right)


def full_precision(device: str) -> AbstractContextManager[Any]:
    """Inside, autocast is off."""
    known = torch.amp.is_autocast_available(device)  # not on "meta"
    return torch.autocast(device, enabled=False) if known else nullcontext()
