"""The heads of a stage. Shapes: R boxes, P matched ones, D channels, C classes."""

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor

CONVOLUTIONS = 4
BOX_SIDE, MASK_SIDE = 7, 14  # of the features that a head is given
MASK = 2 * MASK_SIDE  # the side of a mask


class BoxPrediction(NamedTuple):
    """What a box head says."""

    logits: Tensor  # (R, C + 1), the last of which is the background
    deltas: Tensor  # (R, C, 4): how each class would move the box

    @property
    def likeliest(self) -> Tensor:
        """The likeliest class, background aside: (R,)"""
        return self.logits[:, :-1].argmax(1)


class BoxHead(nn.Module):
    """Four convolutions with batch norm and a fully connected layer; from there the class, and a shift for each class.

    In a run on several GPUs, the norms' statistics are those of all (`tasks/dense/task.py`).
    """

    def __init__(self, channels: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.classes = classes
        shape = (channels, BOX_SIDE, BOX_SIDE)
        self.trunk = FastRCNNConvFCHead(shape, [channels] * CONVOLUTIONS, [hidden], norm_layer=nn.BatchNorm2d)
        self.classify = nn.Linear(hidden, classes + 1)
        self.shift = nn.Linear(hidden, 4 * classes)
        for layer in self.trunk:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
        for layer, deviation in ((self.classify, 0.01), (self.shift, 0.001)):
            nn.init.normal_(layer.weight, std=deviation)
            nn.init.zeros_(layer.bias)

    def forward(self, features: Tensor) -> BoxPrediction:
        """(R, D, 7, 7)"""
        hidden = self.trunk(features)
        return BoxPrediction(self.classify(hidden).float(), self.shift(hidden).float().unflatten(1, (self.classes, 4)))


class MaskHead(nn.Sequential):
    """Four convolutions, one that doubles the side, and a mask for each class: (P, D, 14, 14) -> (P, C, 28, 28)"""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__(
            MaskRCNNHeads(channels, [channels] * CONVOLUTIONS, dilation=1),
            MaskRCNNPredictor(channels, channels, classes),
        )
        for parameter in self[1].parameters():
            if parameter.ndim == 1:
                nn.init.zeros_(parameter)


def own_masks(logits: Tensor, classes: Tensor) -> Tensor:
    """The mask of each box's class: (P, C, 28, 28), (P,) -> (P, 28, 28)"""
    index = classes[:, None, None, None].expand(-1, 1, *logits.shape[2:])
    return logits.gather(1, index)[:, 0].float()


def mask_loss(logits: Tensor, truth: Tensor) -> Tensor:
    """The mean over boxes and pixels, 0 where there is no box: (P, 28, 28), (P, 28, 28)"""
    return F.binary_cross_entropy_with_logits(logits, truth, reduction="sum") / max(1, truth.numel())
