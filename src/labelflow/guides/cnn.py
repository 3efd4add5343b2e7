"""What a trained CNN attends to: the mean over the channels of its last feature map.

Shapes: B batch, D channels, H×W pixels, h×w the map.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelflow.guides.base import Guidance, UnmixedBatch, per_channel
from labelflow.models.create import create


class CNN:
    """A classifier that is trained already sees the unmixed images, in the colours that it knows.

    Its map is what `forward_features` ends with, which the classifier would pool: a ResNet's fourth stage, and where
    there is a convolution after the last stage, as in an EfficientNet, that one, since it has the activation.

    model: by timm's name. init: its weights, 'pretrained' for timm's, 'packaged' for those of a package, or a file.
    size: images are stretched to so many pixels: a CNN with stride 32 has a map of 7×7 at 224. 0: unchanged.
    """

    def __init__(self, model: str = "tf_efficientnet_lite0", init: str = "packaged", size: int = 224) -> None:
        if size < 0:
            raise ValueError(
                f"size, the side in pixels of what the CNN sees, must be at least 0 (unchanged), not {size}"
            )
        trunk: Any = create(model, init)
        self.mean, self.std = (tuple(trunk.pretrained_cfg[name]) for name in ("mean", "std"))
        trunk.reset_classifier(0)
        self.trunk: Any = trunk.eval().requires_grad_(False).to(memory_format=torch.channels_last)
        self.size = size
        self.parameters = sum(parameter.numel() for parameter in trunk.parameters())

    @torch.no_grad()
    def __call__(self, batch: UnmixedBatch) -> Guidance:
        weight = next(self.trunk.parameters())
        if weight.device != batch.images.device:
            self.trunk.to(batch.images.device)
        images = batch.denormalised.to(weight.dtype)
        if self.size and images.shape[2:] != (self.size, self.size):
            images = F.interpolate(images, (self.size, self.size), mode="bilinear", antialias=True)
        mean, std = (per_channel(values, images) for values in (self.mean, self.std))
        images = ((images - mean) / std).contiguous(memory_format=torch.channels_last)
        return Guidance(_mean_over_channels(self.trunk, self.trunk.forward_features(images)))


def _mean_over_channels(trunk: nn.Module, features: Any) -> Tensor:
    """(B, D, h, w) -> (B, h, w), ≥ 0: without a final ReLU, means can be negative."""
    if not isinstance(features, Tensor) or features.ndim != 4:
        raise ValueError(f"{type(trunk).__name__} does not end with a map (B, D, h, w): a CNN, such as resnet50, does")
    means = features.float().mean(1 if getattr(trunk, "output_fmt", "NCHW") == "NCHW" else 3)
    return means - means.amin((1, 2), keepdim=True)
