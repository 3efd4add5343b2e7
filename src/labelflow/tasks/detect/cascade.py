"""The cascade: three stages, each of which refines the boxes of the one before and asks for a better match.

Cai and Vasconcelos, "Cascade R-CNN: High Quality Object Detection and Instance Segmentation", with the settings of the
Swin Transformer's detectors. Shapes: R boxes, P matched ones, N detections, C classes.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops import batched_nms, clip_boxes_to_image, generalized_box_iou_loss

from labelflow.tasks.detect.boxes import Chosen, Size, choose, coder, refine, refine_all
from labelflow.tasks.detect.heads import BOX_SIDE, MASK, MASK_SIDE, Answer, BoxHead, MaskHead, mask_loss, own_masks
from labelflow.tasks.detect.pooling import cut, cut_masks
from labelflow.tasks.detect.settings import Sizes

Target = dict[str, Tensor]  # boxes (T, 4), labels (T,) from 0 to C - 1, masks (T, H, W)


class Setting(NamedTuple):
    """Of a stage."""

    overlap: float  # with a true box, from which on a box stands for it
    spread: tuple[float, float, float, float]  # of shifts: x, y, width, height
    weight: float  # of its losses


SETTINGS = (
    Setting(0.5, (0.1, 0.1, 0.2, 0.2), 1.0),
    Setting(0.6, (0.05, 0.05, 0.1, 0.1), 0.5),
    Setting(0.7, (0.033, 0.033, 0.067, 0.067), 0.25),
)
BOX_WEIGHT = 10.0
POSITIVE = 0.25  # the part of the boxes that a stage is trained on which may match a true one, at most
LEAST_SCORE, MOST_OVERLAP, DETECTIONS = 0.05, 0.5, 100


class Stage(nn.Module):
    """A box head and a mask head, and what they are trained on."""

    def __init__(self, setting: Setting, sizes: Sizes, classes: int) -> None:
        super().__init__()
        self.setting, self.samples = setting, sizes.samples
        self.code = coder(setting.spread)
        self.box = BoxHead(sizes.channels, sizes.hidden, classes)
        self.mask = MaskHead(sizes.channels, classes)

    def choose(self, boxes: list[Tensor], targets: list[Target]) -> list[Chosen]:
        """Boxes to train on, for each image."""
        return [
            choose(own, target["boxes"], self.setting.overlap, self.samples, POSITIVE)
            for own, target in zip(boxes, targets, strict=True)
        ]

    def ask(self, features: list[Tensor], boxes: list[Tensor]) -> Answer:
        """What the box head says of the boxes of all images."""
        return self.box(cut(features, boxes, BOX_SIDE))

    def refined(self, boxes: list[Tensor], answer: Answer, classes: Tensor, sizes: list[Size]) -> list[Tensor]:
        """The boxes of each image as their classes, (sum of R,), would have them."""
        moved = refine(torch.cat(boxes), answer.shifts.detach(), classes, self.code)
        parts = moved.split([len(own) for own in boxes])
        return [clip_boxes_to_image(part, size) for part, size in zip(parts, sizes, strict=True)]

    def box_losses(
        self, answer: Answer, chosen: list[Chosen], targets: list[Target], classes: Tensor
    ) -> dict[str, Tensor]:
        """Of classes over all boxes, and of the refined boxes that match, in the mean over all boxes, too."""
        matched = torch.where(classes < self.box.classes)[0]
        boxes = torch.cat([each.boxes for each in chosen])[matched]
        moved = refine(boxes, answer.shifts[matched], classes[matched], self.code)
        pairs = zip(chosen, targets, strict=True)
        truth = torch.cat([target["boxes"][each.match[each.matched]] for each, target in pairs])
        missed = generalized_box_iou_loss(moved, truth, reduction="sum")
        return {
            "class": F.cross_entropy(answer.logits, classes),
            "box": BOX_WEIGHT * missed / len(classes),
        }

    def mask_loss(self, features: list[Tensor], chosen: list[Chosen], targets: list[Target], classes: Tensor) -> Tensor:
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
        self.stages: Any = nn.ModuleList(Stage(setting, sizes, classes) for setting in SETTINGS)
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
            chosen = stage.choose(boxes, targets)
            pairs = zip(chosen, targets, strict=True)
            classes = torch.cat([each.classes(target["labels"], self.classes) for each, target in pairs])
            boxes = [each.boxes for each in chosen]
            answer = stage.ask(features, boxes)
            found = stage.box_losses(answer, chosen, targets, classes)
            found["mask"] = stage.mask_loss(features, chosen, targets, classes)
            losses |= {f"stage{number}_{name}": stage.setting.weight * loss for name, loss in found.items()}
            own = torch.where(classes < self.classes, classes, answer.likeliest)
            moved = zip(stage.refined(boxes, answer, own, sizes), chosen, strict=True)
            boxes = [each[~its.added] for each, its in moved]  # true boxes are added anew
        return losses

    def detect(self, features: list[Tensor], boxes: list[Tensor], sizes: list[Size]) -> list[dict[str, Tensor]]:
        """The boxes of the last stage, scored by all three, and the mean of their masks."""
        *first, last = self.stages
        scores = []
        for stage in first:
            answer = stage.ask(features, boxes)
            scores.append(answer.logits.softmax(1))
            boxes = stage.refined(boxes, answer, answer.likeliest, sizes)
        answer = last.ask(features, boxes)
        scores.append(answer.logits.softmax(1))
        counts = [len(own) for own in boxes]
        parts = zip(boxes, answer.shifts.split(counts), torch.stack(scores).mean(0).split(counts), sizes, strict=True)
        found = [pick(refine_all(own, shifts, last.code, size), score[:, :-1]) for own, shifts, score, size in parts]
        masks = self.masks(features, [each["boxes"] for each in found], torch.cat([each["labels"] for each in found]))
        cuts = masks.split([len(each["labels"]) for each in found])
        return [{**each, "masks": own} for each, own in zip(found, cuts, strict=True)]

    def masks(self, features: list[Tensor], boxes: list[Tensor], classes: Tensor) -> Tensor:
        """The mean of the stages' masks: (N, 28, 28)"""
        pieces = cut(features, boxes, MASK_SIDE)
        return torch.stack([own_masks(stage.mask(pieces), classes).sigmoid() for stage in self.stages]).mean(0)


def pick(boxes: Tensor, scores: Tensor) -> dict[str, Tensor]:
    """The best detections of an image, none on top of another of its class: (R, C, 4), (R, C) -> N of them"""
    number, labels = torch.where(scores > LEAST_SCORE)
    candidates, heights = boxes[number, labels], scores[number, labels]
    best = batched_nms(candidates, heights, labels, MOST_OVERLAP)[:DETECTIONS]
    return {"boxes": candidates[best], "labels": labels[best], "scores": heights[best]}
