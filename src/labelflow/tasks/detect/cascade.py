"""The cascade: three stages, each of which refines the boxes of the one before and asks for a better match.

Cai and Vasconcelos, "Cascade R-CNN: High Quality Object Detection and Instance Segmentation", with the settings of the
Swin Transformer's detectors. Shapes: R boxes, P matched ones, N detections, C classes.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops import batched_nms, clip_boxes_to_image, generalized_box_iou_loss

from labelflow.tasks.detect.boxes import SampledBoxes, Size, coder, refine, refine_all, sample_boxes
from labelflow.tasks.detect.heads import (
    BOX_SIDE,
    MASK,
    MASK_SIDE,
    BoxHead,
    BoxPrediction,
    MaskHead,
    mask_loss,
    own_masks,
)
from labelflow.tasks.detect.pooling import cut, cut_masks
from labelflow.tasks.detect.settings import Sizes

Target = dict[str, Tensor]  # boxes (T, 4), labels (T,) from 0 to C - 1, masks (T, H, W)


class StageSettings(NamedTuple):
    """What differs between the stages."""

    iou: float  # with a true box, from which on a box counts as a match
    std: tuple[float, float, float, float]  # of the deltas: x, y, width, height
    weight: float  # of its losses


STAGES = (
    StageSettings(0.5, (0.1, 0.1, 0.2, 0.2), 1.0),
    StageSettings(0.6, (0.05, 0.05, 0.1, 0.1), 0.5),
    StageSettings(0.7, (0.033, 0.033, 0.067, 0.067), 0.25),
)
BOX_WEIGHT = 10.0
POSITIVE_FRACTION = 0.25  # the part of the boxes that a stage is trained on which may match a true one, at most
MIN_SCORE, NMS_IOU, MAX_DETECTIONS = 0.05, 0.5, 100


class Stage(nn.Module):
    """A box head and a mask head, and what they are trained on."""

    def __init__(self, setting: StageSettings, sizes: Sizes, classes: int) -> None:
        super().__init__()
        self.setting, self.samples = setting, sizes.samples
        self.code = coder(setting.std)
        self.box = BoxHead(sizes.channels, sizes.hidden, classes)
        self.mask = MaskHead(sizes.channels, classes)

    def sample(self, boxes: list[Tensor], targets: list[Target]) -> list[SampledBoxes]:
        """Boxes to train on, for each image."""
        return [
            sample_boxes(own, target["boxes"], self.setting.iou, self.samples, POSITIVE_FRACTION)
            for own, target in zip(boxes, targets, strict=True)
        ]

    def predict(self, features: list[Tensor], boxes: list[Tensor]) -> BoxPrediction:
        """What the box head says of the boxes of all images."""
        return self.box(cut(features, boxes, BOX_SIDE))

    def refined(
        self, boxes: list[Tensor], prediction: BoxPrediction, classes: Tensor, sizes: list[Size]
    ) -> list[Tensor]:
        """The boxes of each image as their classes, (sum of R,), would have them."""
        moved = refine(torch.cat(boxes), prediction.deltas.detach(), classes, self.code)
        parts = moved.split([len(own) for own in boxes])
        return [clip_boxes_to_image(part, size) for part, size in zip(parts, sizes, strict=True)]

    def box_losses(
        self, prediction: BoxPrediction, chosen: list[SampledBoxes], targets: list[Target], classes: Tensor
    ) -> dict[str, Tensor]:
        """Of classes over all boxes, and of the refined boxes that match, in the mean over all boxes, too."""
        matched = torch.where(classes < self.box.classes)[0]
        boxes = torch.cat([each.boxes for each in chosen])[matched]
        moved = refine(boxes, prediction.deltas[matched], classes[matched], self.code)
        pairs = zip(chosen, targets, strict=True)
        truth = torch.cat([target["boxes"][each.match[each.matched]] for each, target in pairs])
        missed = generalized_box_iou_loss(moved, truth, reduction="sum")
        return {
            "class": F.cross_entropy(prediction.logits, classes),
            "box": BOX_WEIGHT * missed / len(classes),
        }

    def mask_loss(
        self, features: list[Tensor], chosen: list[SampledBoxes], targets: list[Target], classes: Tensor
    ) -> Tensor:
        """Of the boxes that match: the mask of the true class, within the box as it came in."""
        boxes = [each.boxes[each.matched] for each in chosen]
        matches = [each.match[each.matched] for each in chosen]
        parts = zip(targets, boxes, matches, strict=True)
        truth = torch.cat([cut_masks(target["masks"], own, match, MASK) for target, own, match in parts])
        logits = self.mask(cut(features, boxes, MASK_SIDE))
        return mask_loss(own_masks(logits, classes[classes < self.box.classes]), truth)


class Cascade(nn.Module):
    """Three stages in a row: from proposals to losses, or to detections."""

    def __init__(self, sizes: Sizes, classes: int) -> None:
        super().__init__()
        self.stages: Any = nn.ModuleList(Stage(setting, sizes, classes) for setting in STAGES)
        self.classes = classes

    def forward(
        self,
        features: dict[str, Tensor],
        proposals: list[Tensor],
        sizes: list[Size],
        targets: list[Target] | None = None,
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        """Detections and losses, one of which is empty; masks are (N, 28, 28), within their boxes."""
        levels = list(features.values())
        if self.training:
            assert targets is not None
            return [], self.losses(levels, proposals, sizes, targets)
        return self.detect(levels, proposals, sizes), {}

    def losses(
        self, features: list[Tensor], boxes: list[Tensor], sizes: list[Size], targets: list[Target]
    ) -> dict[str, Tensor]:
        """Three of each stage, weighted: their sum is the loss."""
        losses: dict[str, Tensor] = {}
        for number, stage in enumerate(self.stages, start=1):
            chosen = stage.sample(boxes, targets)
            pairs = zip(chosen, targets, strict=True)
            classes = torch.cat([each.classes(target["labels"], self.classes) for each, target in pairs])
            boxes = [each.boxes for each in chosen]
            prediction = stage.predict(features, boxes)
            found = stage.box_losses(prediction, chosen, targets, classes)
            found["mask"] = stage.mask_loss(features, chosen, targets, classes)
            losses |= {f"stage{number}_{name}": stage.setting.weight * loss for name, loss in found.items()}
            own = torch.where(classes < self.classes, classes, prediction.likeliest)
            moved = zip(stage.refined(boxes, prediction, own, sizes), chosen, strict=True)
            boxes = [each[~its.added] for each, its in moved]  # true boxes are added anew
        return losses

    def detect(self, features: list[Tensor], boxes: list[Tensor], sizes: list[Size]) -> list[dict[str, Tensor]]:
        """The boxes of the last stage, scored by all three, and the mean of their masks."""
        *first, last = self.stages
        scores = []
        for stage in first:
            prediction = stage.predict(features, boxes)
            scores.append(prediction.logits.softmax(1))
            boxes = stage.refined(boxes, prediction, prediction.likeliest, sizes)
        prediction = last.predict(features, boxes)
        scores.append(prediction.logits.softmax(1))
        counts = [len(own) for own in boxes]
        deltas, averaged = prediction.deltas.split(counts), torch.stack(scores).mean(0).split(counts)
        parts = zip(boxes, deltas, averaged, sizes, strict=True)
        found = [pick(refine_all(own, delta, last.code, size), score[:, :-1]) for own, delta, score, size in parts]
        masks = self.masks(features, [each["boxes"] for each in found], torch.cat([each["labels"] for each in found]))
        cuts = masks.split([len(each["labels"]) for each in found])
        return [{**each, "masks": own} for each, own in zip(found, cuts, strict=True)]

    def masks(self, features: list[Tensor], boxes: list[Tensor], classes: Tensor) -> Tensor:
        """The mean of the stages' masks: (N, 28, 28)"""
        pieces = cut(features, boxes, MASK_SIDE)
        return torch.stack([own_masks(stage.mask(pieces), classes).sigmoid() for stage in self.stages]).mean(0)


def pick(boxes: Tensor, scores: Tensor) -> dict[str, Tensor]:
    """The best detections of an image, none on top of another of its class: (R, C, 4), (R, C) -> N of them"""
    number, labels = torch.where(scores > MIN_SCORE)
    candidates, heights = boxes[number, labels], scores[number, labels]
    best = batched_nms(candidates, heights, labels, NMS_IOU)[:MAX_DETECTIONS]
    return {"boxes": candidates[best], "labels": labels[best], "scores": heights[best]}
