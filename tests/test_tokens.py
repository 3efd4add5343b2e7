"""Image sizes that a model's patches cover."""

import pytest
import torch
from torch import Tensor, nn

from labelflow.tokens import check_image_size


class Patches(nn.Module):
    """A stem of stride 2, patches, and an average."""

    def __init__(self, **convolution: int) -> None:
        super().__init__()
        self.patch_embed = nn.Sequential(nn.Conv2d(3, 2, 3, 2, 1), nn.Conv2d(2, 2, **convolution))

    def forward(self, images: Tensor) -> Tensor:
        return self.patch_embed(images).mean((2, 3))


def sees_all(model: nn.Module, size: int) -> bool:
    """By the gradient: no pixel's is 0."""
    image = torch.rand(1, 3, size, size, requires_grad=True)
    model(image).sum().backward()
    return bool((image.grad != 0).any(1).all())


@pytest.mark.parametrize("size", range(8, 33))
@pytest.mark.parametrize(
    "convolution",
    [
        {"kernel_size": 4, "stride": 4},
        {"kernel_size": 4, "stride": 4, "padding": 2},
        {"kernel_size": 7, "stride": 4, "padding": 3},
    ],
)
def test_what_is_refused_is_what_leaves_pixels_out(convolution: dict[str, int], size: int) -> None:
    model = Patches(**convolution)
    if sees_all(model, size):
        check_image_size(model, size)
    elif "padding" not in convolution:  # where there is any, at most a part of a patch is lost
        with pytest.raises(ValueError, match=f"patches of 8×8 pixels, which do not divide images of {size}×{size}"):
            check_image_size(model, size)


def test_sizes_nearby_and_other_errors() -> None:
    model = Patches(kernel_size=4, stride=4)
    with pytest.raises(ValueError, match=r"mine has patches .* --image-size 8 or 16$"):
        check_image_size(model, 13, "mine")
    with pytest.raises(ValueError, match=r"^Patches does not take images of 5×5 pixels: .*[Kk]ernel size"):
        check_image_size(model, 5)
    assert not any(module._forward_hooks for module in model.modules())
