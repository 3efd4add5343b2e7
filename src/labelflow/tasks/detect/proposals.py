"""Where something may be: the region proposal network, on a feature pyramid of five levels."""

import torch
from torch import Tensor, nn
from torchvision.models.detection._utils import Matcher
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead
from torchvision.ops import FeaturePyramidNetwork
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from labelflow.tasks.detect.pooling import STRIDES
from labelflow.tasks.detect.settings import Sizes

ALL_STRIDES = (*STRIDES, 2 * STRIDES[-1])
RATIOS = 0.5, 1.0, 2.0  # of its height to its width
IGNORED = -1  # the label of an anchor that nothing is learned from
LOSSES = {"loss_objectness": "region_class", "loss_rpn_box_reg": "region_box"}  # torchvision's names, and ours


class Pyramid(nn.Module):
    """A backbone's four levels, brought together: (B, 3, H, W) -> five levels (B, channels, H / 4, W / 4) …"""

    def __init__(self, levels: nn.Module, level_channels: list[int], channels: int) -> None:
        super().__init__()
        self.levels = levels
        self.join = FeaturePyramidNetwork(level_channels, channels, LastLevelMaxPool())
        for layer in self.join.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.xavier_uniform_(layer.weight)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        levels = {str(number): level for number, level in enumerate(self.levels(images))}
        return {name: level.float() for name, level in self.join(levels).items()}


class Anchors(AnchorGenerator):
    """Three boxes around each place, of the very size and stride: torchvision's own are rounded, and its strides
    guessed from the sizes of levels, which is wrong where a level has been padded."""

    def __init__(self, side: int = Sizes.anchor) -> None:
        """side: in strides"""
        super().__init__(tuple((side * stride,) for stride in ALL_STRIDES), (RATIOS,) * len(ALL_STRIDES))

    def generate_anchors(
        self,
        scales: tuple[int, ...],
        aspect_ratios: tuple[float, ...],
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        sides = [(scale / ratio**0.5, scale * ratio**0.5) for ratio in aspect_ratios for scale in scales]
        corners = [(-width / 2, -height / 2, width / 2, height / 2) for width, height in sides]
        return torch.tensor(corners, dtype=dtype, device=device)

    def grid_anchors(self, grid_sizes: list[list[int]], strides: list[list[Tensor]]) -> list[Tensor]:
        return super().grid_anchors(grid_sizes, [(stride, stride) for stride in ALL_STRIDES])


class RegionHead(RPNHead):
    """Its answers are float32 also under autocast, for boxes are computed from them."""

    def forward(self, levels: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        logits, deltas = super().forward(levels)
        return [level.float() for level in logits], [level.float() for level in deltas]


class AnchorMatcher(Matcher):
    """An anchor matches with an IoU of at least 0.7; the best ones of a true box, with at least 0.3."""

    def __init__(self, iou: float = 0.7, low_quality_iou: float = 0.3) -> None:
        super().__init__(iou, low_quality_iou, allow_low_quality_matches=True)

    def set_low_quality_matches_(self, matches: Tensor, all_matches: Tensor, match_quality_matrix: Tensor) -> None:
        overlaps = match_quality_matrix  # (true boxes, anchors)
        best = overlaps.amax(1, keepdim=True)
        chosen = ((overlaps == best) & (overlaps >= self.low_threshold)).any(0)
        matches[chosen] = all_matches[chosen]


class Regions(RegionProposalNetwork):
    """Learns nothing from what a smaller image of a batch is padded with: places there are not drawn as background."""

    def assign_targets_to_anchors(
        self, anchors: list[Tensor], targets: list[dict[str, Tensor]]
    ) -> tuple[list[Tensor], list[Tensor]]:
        labels, truth = super().assign_targets_to_anchors(anchors, targets)
        for label, boxes, target in zip(labels, anchors, targets, strict=True):
            height, width = target["masks"].shape[1:]
            outside = (boxes[:, :2] + boxes[:, 2:] >= 2 * boxes.new_tensor([width, height])).any(1)  # by their middles
            label[outside & (label == 0)] = IGNORED
        return labels, truth


def region_proposals(sizes: Sizes) -> RegionProposalNetwork:
    """The network, with its settings."""
    most = {"training": 2 * sizes.proposals, "testing": sizes.proposals}
    network = Regions(
        Anchors(sizes.anchor),
        RegionHead(sizes.channels, len(RATIOS)),
        fg_iou_thresh=0.7,
        bg_iou_thresh=0.3,
        batch_size_per_image=256,
        positive_fraction=0.5,
        pre_nms_top_n=most,  # of each level
        post_nms_top_n=most,
        nms_thresh=0.7,
    )
    network.proposal_matcher = AnchorMatcher()
    return network
