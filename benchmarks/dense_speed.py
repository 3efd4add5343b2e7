"""How fast are our segmenters and detectors? Beside others of their kind, taking turns in one run.

    python benchmarks/dense_speed.py --rounds 5

- Our UperNet on Swin-T, beside UPerNet of segmentation-models-pytorch on the same encoder and as wide, and beside
  torchvision's FCN and DeepLabV3 on ResNet-50. The others have no auxiliary head, so ours is also timed without.
- Our Cascade Mask R-CNN on Swin-T, beside torchvision's Mask R-CNN on ResNet-50 (v2), which has one stage, not three;
  and ours with its first stage alone, beside torchvision's Mask R-CNN on our own Swin pyramid and proposals, its heads
  as large. All look at as many boxes of an image, and in evaluation find up to 100 objects.

A step is forward, loss and backward. Images are scenes of the sample world, weights are random, models have 150
classes (segmenters) or the world's ten (detectors). Time is the CPU time of one thread; speeds are medians and
quartiles of the paired ratios, ours to the other's: 1.1 is a tenth faster. Multiply-adds are those of the same steps,
where attention, convolutions and matrix products count. Prints tables, and writes out/dense_speed.json.
"""

import argparse
import importlib
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models.detection import MaskRCNN, maskrcnn_resnet50_fpn_v2
from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead
from torchvision.models.segmentation import deeplabv3_resnet50, fcn_resnet50

from labelflow.data.world import World
from labelflow.spec import parse
from labelflow.tasks.detect.cascade import MAX_DETECTIONS
from labelflow.tasks.detect.data import WorldObjects
from labelflow.tasks.detect.model import make_detector
from labelflow.tasks.detect.proposals import Anchors
from labelflow.tasks.detect.settings import Sizes
from labelflow.tasks.segment.data import WorldMasks
from labelflow.tasks.segment.model import Segmenter, enlarge, make_segmenter
from labelflow.tasks.segment.task import pixel_loss

CLASSES, WIDTH, AUXILIARY = 150, 512, 0.4  # of segmenters
OBJECTS = 3  # of a scene


@dataclass
class Model:
    """Something to be timed, and what was measured of it."""

    net: nn.Module
    loss: Callable[[], Tensor]  # in training
    answer: Callable[[], object]  # in evaluation
    multiply_adds: float = 0.0  # of a step, in billions
    step: list[float] = field(default_factory=list)  # seconds
    inference: list[float] = field(default_factory=list)

    @property
    def parameters(self) -> float:
        return sum(parameter.numel() for parameter in self.net.parameters()) / 1e6

    def train(self) -> None:
        self.net.train()
        begin = time.process_time()
        self.loss().backward()
        self.step.append(time.process_time() - begin)
        self.net.zero_grad()

    def evaluate(self) -> None:
        self.net.eval()
        with torch.inference_mode():
            begin = time.process_time()
            self.answer()
            self.inference.append(time.process_time() - begin)

    def warm_up(self) -> None:
        """Once, which is counted, not timed."""
        with FlopCounterMode(display=False) as counter:
            self.train()
        self.evaluate()
        self.multiply_adds = counter.get_total_flops() / 2e9
        self.step, self.inference = [], []


Models = dict[str, Model]
Pairs = list[tuple[str, str]]  # ours, and another


class WithoutAuxiliary(nn.Module):
    """Our segmenter, without the head that is for training only."""

    def __init__(self, segmenter: Segmenter) -> None:
        super().__init__()
        self.levels, self.head = segmenter.levels, segmenter.head

    def forward(self, images: Tensor) -> Tensor:
        return enlarge(self.head(self.levels(images)), self.levels.strides[0], images.shape[2:])


def segmenters(size: int, batch: int, backbone: str, width: int) -> tuple[Models, Pairs]:
    source = WorldMasks(World("train", batch, size=size, objects=OBJECTS))
    samples = [source.load(index) for index in range(batch)]
    images = torch.stack([sample.image for sample in samples]) / 255
    masks = torch.stack([sample.mask for sample in samples]).long()

    def timed(net: nn.Module, logits: Callable[[Any], list[Tensor]]) -> Model:
        def loss() -> Tensor:
            first, *auxiliary = (pixel_loss(one, masks) for one in logits(net(images)))
            return first + AUXILIARY * sum(auxiliary)

        return Model(net, loss, lambda: net(images))

    segmenter = make_segmenter(backbone, classes=CLASSES, image_size=size, width=width)
    plain, trained = "ours: UperNet", "ours: UperNet, as trained, with its auxiliary head"
    models = {
        plain: timed(WithoutAuxiliary(segmenter), lambda found: [found]),
        trained: timed(segmenter, list),
        "torchvision: FCN, ResNet-50": timed(
            fcn_resnet50(weights=None, weights_backbone=None, num_classes=CLASSES), lambda found: [found["out"]]
        ),
        "torchvision: DeepLabV3, ResNet-50": timed(
            deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=CLASSES), lambda found: [found["out"]]
        ),
    }
    pairs = [(plain, name) for name in models if not name.startswith("ours")]
    peer = other_upernet(size, backbone, width)
    if peer:
        name = "segmentation-models-pytorch: UPerNet"
        models[name] = timed(peer, lambda found: [found])
        pairs = [(plain, name), (trained, name), *pairs]
    return models, pairs


def other_upernet(size: int, backbone: str, width: int) -> nn.Module | None:
    """That of segmentation-models-pytorch, if it is installed."""
    try:
        package: Any = importlib.import_module("segmentation_models_pytorch")
    except ImportError:
        print("Left out, as it is not installed: pip install segmentation-models-pytorch\n")
        return None
    name, arguments = parse(backbone)
    net: nn.Module = package.UPerNet(
        f"tu-{name}",
        encoder_weights=None,
        decoder_channels=width or WIDTH,
        classes=CLASSES,
        **{"img_size": size, "drop_path_rate": 0.0, **arguments},
    )
    return net


def detectors(size: int, batch: int, backbone: str, boxes: int) -> tuple[Models, Pairs]:
    source = WorldObjects(World("train", batch, size=size, objects=OBJECTS))
    samples = [source.load(index) for index in range(batch)]
    images = [sample.image / 255 for sample in samples]
    targets = [{"boxes": one.boxes, "labels": one.labels, "masks": one.masks} for one in samples]
    from_one = [{**target, "labels": target["labels"] + 1} for target in targets]  # torchvision's background is 0

    def timed(net: nn.Module, targets: list[dict[str, Tensor]]) -> Model:
        def loss() -> Tensor:
            losses: list[Tensor] = list(net(images, targets).values())
            return torch.stack(losses).sum()

        return Model(net, loss, lambda: net(images))

    classes, sizes = len(source.classes), Sizes(samples=boxes, proposals=2 * boxes)
    look: dict[str, Any] = {"drop_path": 0.0, "short_side": size, "long_side": 2 * size}
    cascade, first = (make_detector(backbone, classes, sizes=sizes, **look) for _ in range(2))
    first.roi_heads.stages = first.roi_heads.stages[:1]
    pyramid = first.backbone
    pyramid.out_channels = sizes.channels  # which torchvision asks for
    same: dict[str, Any] = {  # as ours
        "num_classes": classes + 1,
        "min_size": size,
        "max_size": 2 * size,
        "rpn_pre_nms_top_n_train": 2 * sizes.proposals,
        "rpn_pre_nms_top_n_test": sizes.proposals,
        "rpn_post_nms_top_n_train": 2 * sizes.proposals,
        "rpn_post_nms_top_n_test": sizes.proposals,
        "box_batch_size_per_image": sizes.samples,
        "box_detections_per_img": MAX_DETECTIONS,
    }
    box_head = FastRCNNConvFCHead((256, 7, 7), [256] * 4, [sizes.hidden], norm_layer=nn.BatchNorm2d)
    single = MaskRCNN(pyramid, rpn_anchor_generator=Anchors(), box_head=box_head, **same)
    single.rpn = first.rpn  # the same proposals, so that as many of them match
    ours, one_stage = "ours: Cascade Mask R-CNN", "ours: its first stage alone"
    on_resnet, on_ours = "torchvision: Mask R-CNN v2, ResNet-50", "torchvision: Mask R-CNN on our pyramid"
    models = {
        ours: timed(cascade, targets),
        one_stage: timed(first, targets),
        on_resnet: timed(maskrcnn_resnet50_fpn_v2(weights=None, weights_backbone=None, **same), from_one),
        on_ours: timed(single, from_one),
    }
    return models, [(one_stage, on_ours), (one_stage, on_resnet), (ours, on_ours), (ours, on_resnet)]


def measure(models: Models, rounds: int) -> None:
    """All take turns."""
    for model in models.values():
        model.warm_up()
    for number in range(rounds):
        order = list(models.values())
        for model in order[number % len(order) :] + order[: number % len(order)]:
            model.train()
            model.evaluate()


def speed(ours: list[float], other: list[float]) -> list[float]:
    """Lower quartile, median and upper quartile of the paired ratios."""
    ratios = [theirs / own for own, theirs in zip(ours, other, strict=True)]
    return statistics.quantiles(ratios, method="inclusive") if len(ratios) > 1 else ratios * 3


def tell(models: Models, pairs: Pairs) -> dict[str, Any]:
    """Prints two tables; the numbers in them."""
    print("| | parameters (M) | multiply-adds of a step (G) | step (s) | inference (s) |\n|---|---|---|---|---|")
    sizes, speeds = {}, {}
    for name, model in models.items():
        seconds = statistics.median(model.step), statistics.median(model.inference)
        print(f"| {name} | {model.parameters:.1f} | {model.multiply_adds:.1f} | {seconds[0]:.2f} | {seconds[1]:.2f} |")
        titles = ("parameters", "multiply_adds", "step", "inference")
        sizes[name] = dict(zip(titles, (model.parameters, model.multiply_adds, *seconds), strict=True))
    print("\n| | beside | speed of a step | of inference |\n|---|---|---|---|")
    for own, other in pairs:
        ratios = {key: speed(getattr(models[own], key), getattr(models[other], key)) for key in ("step", "inference")}
        told = [f"{middle:.2f} ({low:.2f} to {high:.2f})" for low, middle, high in ratios.values()]
        print(f"| {own} | {other} | {told[0]} | {told[1]} |")
        speeds[f"{own} | {other}"] = ratios
    print()
    return {"models": sizes, "speed": speeds}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = ["segmenters", "detectors"]
    parser.add_argument("--kinds", nargs="+", default=kinds, choices=kinds)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=int, default=224, help="side of the images, in pixels")
    parser.add_argument("--batch", type=int, default=2, help="images of a step, at least 2")
    parser.add_argument("--boxes", type=int, default=64, help="that a stage is trained on; twice as many in evaluation")
    parser.add_argument("--backbone", default="swin_tiny_patch4_window7_224")
    parser.add_argument("--width", type=int, default=0, help=f"channels of UperNet; 0: {WIDTH}, as published")
    parser.add_argument("--out", type=Path, default=Path("out"))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.manual_seed(0)

    table = {}
    for kind in options.kinds:
        make, own = {"segmenters": (segmenters, options.width), "detectors": (detectors, options.boxes)}[kind]
        models, pairs = make(options.size, options.batch, options.backbone, own)
        measure(models, options.rounds)
        table[kind] = tell(models, pairs)
    options.out.mkdir(exist_ok=True)
    (options.out / "dense_speed.json").write_text(json.dumps(table, indent=2))


if __name__ == "__main__":
    main()
