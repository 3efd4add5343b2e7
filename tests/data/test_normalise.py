"""Bytes become colours with torchvision's bits, and what that needs is on the device."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torchvision.transforms import functional as F

from labelflow.data import normalise
from labelflow.data.normalise import Normalise

EVERY_BYTE = torch.arange(256, dtype=torch.uint8).view(16, 16).expand(2, 3, -1, -1)  # in every channel
COLOURS = [
    ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
]


@pytest.mark.parametrize(("mean", "std"), COLOURS)
def test_every_byte_is_bit_for_bit_torchvisions(mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    images = Normalise(mean, std)(EVERY_BYTE)
    for image, pixels in zip(images, EVERY_BYTE, strict=True):
        fractions = F.to_tensor(pixels.permute(1, 2, 0).numpy())
        assert torch.equal(image, F.normalize(fractions, list(mean), list(std)))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_bytes_are_left_alone_and_images_lie_in_memory_as_they_do(layout: torch.memory_format) -> None:
    pixels = EVERY_BYTE.clone(memory_format=layout)
    images = Normalise(*COLOURS[0])(pixels)
    assert images.is_contiguous(memory_format=layout)
    assert torch.equal(images, Normalise(*COLOURS[0])(EVERY_BYTE))
    assert torch.equal(pixels, EVERY_BYTE)


class Operands(TorchDispatchMode):
    """What arithmetic is done with."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(name in str(function) for name in ("div", "sub", "mul")):
            self.seen += tree_leaves(args)
        return function(*args, **kwargs or {})


def test_constants_are_made_once_and_live_where_the_images_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU would wait for a constant from elsewhere, and divides by plain numbers inexactly."""
    colours, pixels = Normalise((0.1, 0.2, 0.3), (0.4, 0.5, 0.6)), torch.empty(2, 3, 4, 4, dtype=torch.uint8)
    colours(pixels.to("meta"))
    monkeypatch.setattr(normalise.torch, "tensor", lambda *args, **how: pytest.fail("made again"))
    with Operands() as operands:
        Normalise((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))(pixels.to("meta"))  # as another batch of a worker has it
    assert len(operands.seen) == 6
    assert all(isinstance(one, torch.Tensor) and one.device.type == "meta" for one in operands.seen)
