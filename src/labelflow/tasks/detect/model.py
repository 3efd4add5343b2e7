"""Cascade Mask R-CNN, from a backbone with four levels and torchvision's detection parts."""

from collections.abc import Sequence

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor, nn
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN
from torchvision.models.detection.transform import GeneralizedRCNNTransform, resize_boxes
from torchvision.transforms.v2 import functional as T

from labelflow.tasks.dense.backbone import make_levels
from labelflow.tasks.dense.layers import fit
from labelflow.tasks.dense.parts import BackboneAndHeads
from labelflow.tasks.detect.boxes import Size
from labelflow.tasks.detect.cascade import Cascade, Target
from labelflow.tasks.detect.pooling import STRIDES, paste
from labelflow.tasks.detect.proposals import LOSSES, Pyramid, region_proposals
from labelflow.tasks.detect.settings import Sizes

OUTSIDE = 0.5  # pixels by which a box may leave its image: rounding


def make_detector(
    backbone: str = "swin_tiny_patch4_window7_224",
    classes: int = 80,
    init: str = "",
    *,
    sizes: Sizes | None = None,
    drop_path: float = 0.2,
    short_side: int = 800,
    long_side: int = 1333,
    mean: Sequence[float] = IMAGENET_DEFAULT_MEAN,
    std: Sequence[float] = IMAGENET_DEFAULT_STD,
) -> "CascadeMaskRCNN":
    """A detector on a timm model.

    init: '' for random weights, 'pretrained' for timm's own, a checkpoint file, or the folder of a run. In
    evaluation, images are resized to a short side, or to a long side where it would be more.
    """
    if classes < 1:
        raise ValueError(f"classes, background aside, must be at least 1, not {classes}")
    levels = make_levels(backbone, init, drop_path)
    if list(levels.strides) != list(STRIDES):
        raise ValueError(
            f"a detector needs levels at strides 4, 8, 16 and 32; those of {backbone} are {levels.strides}"
        )
    resizing = Resizing(short_side, long_side, list(mean), list(std), size_divisible=32)
    return CascadeMaskRCNN(levels, levels.channels, classes, resizing, sizes or Sizes())


class Resizing(GeneralizedRCNNTransform):
    """Images are normalised and padded, in evaluation also resized; detections go back to the size of the image."""

    def resize(self, image: Tensor, target: Target | None = None) -> tuple[Tensor, Target | None]:
        """As training images are resized before they come here: torchvision would not smooth what becomes smaller."""
        if self.training:
            return image, target
        size = fit((image.shape[1], image.shape[2]), self.min_size[0], self.max_size)
        return T.resize(image, list(size), antialias=True), target

    def postprocess(
        self, result: list[dict[str, Tensor]], image_shapes: list[Size], original_image_sizes: list[Size]
    ) -> list[dict[str, Tensor]]:
        sizes = zip(result, image_shapes, original_image_sizes, strict=False)  # no result in training
        return [_fit(found, resized, original) for found, resized, original in sizes]


def _fit(found: dict[str, Tensor], resized: Size, original: Size) -> dict[str, Tensor]:
    boxes = resize_boxes(found["boxes"], resized, original)
    return {**found, "boxes": boxes, "masks": paste(found["masks"], boxes, original)}


class CascadeMaskRCNN(BackboneAndHeads, GeneralizedRCNN):
    """A detector. Images are (3, H, W) each, from 0 to 1.

    In training, `model(images, targets)` gives losses by name, whose sum is the loss; images keep their size. A target
    has boxes (T, 4) as left, top, right, bottom in pixels, labels (T,) from 0 to classes - 1 and masks (T, H, W) of 0
    and 1. In evaluation, `model(images)` gives the same of each image, and scores (N,), best first; masks are bool.
    """

    backbone_name = "backbone.levels.model"

    def __init__(
        self, levels: nn.Module, level_channels: list[int], classes: int, resizing: Resizing, sizes: Sizes
    ) -> None:
        pyramid = Pyramid(levels, level_channels, sizes.channels)
        super().__init__(pyramid, region_proposals(sizes), Cascade(sizes, classes), resizing)
        self.classes = classes

    def forward(
        self, images: Sequence[Tensor], targets: list[Target] | None = None
    ) -> dict[str, Tensor] | list[dict[str, Tensor]]:
        check_images(images)
        if not self.training:
            return super().forward(images)
        if targets is None or len(targets) != len(images):
            raise ValueError(f"training needs a target for each of {len(images)} images, not {len(targets or [])}")
        for number, (image, target) in enumerate(zip(images, targets, strict=True)):
            check_target(target, (image.shape[-2], image.shape[-1]), self.classes, f"image {number}")
        return {LOSSES.get(name, name): loss for name, loss in super().forward(images, targets).items()}

    def no_weight_decay(self) -> set[str]:
        return {f"backbone.levels.{name}" for name in self.backbone.levels.no_weight_decay()}

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.backbone.levels.set_grad_checkpointing(enable)


def check_images(images: Sequence[Tensor]) -> None:
    """A ValueError says what is wrong with images."""
    if not len(images):
        raise ValueError("there is no image")
    for number, image in enumerate(images):
        if image.ndim != 3 or image.shape[0] != 3 or not image.is_floating_point():
            shape = tuple(image.shape)
            raise ValueError(f"image {number} must be (3, H, W), floating from 0 to 1, not {shape}, {image.dtype}")


def check_target(target: Target, size: Size, classes: int, name: str) -> None:
    """A ValueError says what is wrong with a target of an image."""
    missing = {"boxes", "labels", "masks"} - target.keys()
    if missing:
        raise ValueError(f"the target of {name} has no {' and no '.join(sorted(missing))}")
    boxes, labels, masks = target["boxes"], target["labels"], target["masks"]
    height, width = size
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ValueError(f"the boxes of {name} must be (T, 4), not {tuple(boxes.shape)}; (0, 4) if there is none")
    if labels.shape != boxes.shape[:1]:
        raise ValueError(f"{name} has {len(boxes)} boxes, but labels {tuple(labels.shape)}: one for each box is needed")
    if masks.shape != (len(boxes), height, width):
        expected = (len(boxes), height, width)
        raise ValueError(f"the masks of {name} must be {expected}, one for each box, not {tuple(masks.shape)}")
    limits = boxes.new_tensor([width, height, width, height]) + OUTSIDE
    _complain(~boxes.isfinite().all(1), target, name, "is not a number")
    _complain((boxes[:, 2:] <= boxes[:, :2]).any(1), target, name, "has no area: left < right and top < bottom")
    _complain(
        ((boxes < -OUTSIDE) | (boxes > limits)).any(1), target, name, f"is outside of the image, {height}×{width}"
    )
    wrong = (labels < 0) | (labels >= classes)
    _complain(wrong, target, name, f"is of a class that there isn't: there are 0 to {classes - 1}")


def _complain(wrong: Tensor, target: Target, name: str, what: str) -> None:
    if wrong.any():
        number = int(torch.where(wrong)[0][0])
        box = [round(side, 1) for side in target["boxes"][number].tolist()]
        raise ValueError(f"box {number} of {name}, {box} of class {int(target['labels'][number])}, {what}")
