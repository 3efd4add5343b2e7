"""Cascade Mask R-CNN against the papers' sizes, and its parts against naive oracles and laws."""

import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models.detection.image_list import ImageList
from torchvision.ops import box_iou

from labelflow.data.world import World
from labelflow.models.create import create
from labelflow.tasks.detect.boxes import SampledBoxes, assign, coder, refine, refine_all, sample_boxes
from labelflow.tasks.detect.cascade import (
    BOX_WEIGHT,
    MAX_DETECTIONS,
    MIN_SCORE,
    NMS_IOU,
    POSITIVE_FRACTION,
    STAGES,
    Cascade,
    Stage,
    pick,
)
from labelflow.tasks.detect.data import Sample
from labelflow.tasks.detect.heads import BoxPrediction, mask_loss, own_masks
from labelflow.tasks.detect.model import CascadeMaskRCNN, make_detector
from labelflow.tasks.detect.pooling import STRIDES, cut, cut_masks, level_of, paste
from labelflow.tasks.detect.proposals import ALL_STRIDES, AnchorMatcher, Anchors, region_proposals
from labelflow.tasks.detect.settings import Sizes
from labelflow.tasks.detect.views import resize

TINY = "swin_tiny_patch4_window7_224(embed_dim=16, depths=(1, 1, 1, 1), num_heads=(1, 2, 4, 8))"
SMALL = Sizes(channels=32, hidden=64, samples=32, proposals=50)


def tiny(side: int = 64, classes: int = 10) -> CascadeMaskRCNN:
    torch.manual_seed(0)
    return make_detector(TINY, classes, drop_path=0.0, sizes=SMALL, short_side=side)


def random_boxes(count: int, side: float = 100) -> Tensor:
    middle, half = torch.rand(count, 2) * side, torch.rand(count, 2) * side / 4 + 1
    return torch.cat([middle - half, middle + half], 1)


def naive_overlap(one: list[float], other: list[float]) -> tuple[float, float]:
    """IoU and generalised IoU."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    common = max(0.0, width) * max(0.0, height)
    union = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)) - common
    hull = (max(one[2], other[2]) - min(one[0], other[0])) * (max(one[3], other[3]) - min(one[1], other[1]))
    return common / union, common / union - (hull - union) / hull


def naive_move(box: list[float], shift: list[float], std: tuple[float, ...]) -> list[float]:
    left, top, right, bottom = box
    width, height = right - left, bottom - top
    x = left + width / 2 + shift[0] * std[0] * width
    y = top + height / 2 + shift[1] * std[1] * height
    width, height = width * math.exp(shift[2] * std[2]), height * math.exp(shift[3] * std[3])
    return [x - width / 2, y - height / 2, x + width / 2, y + height / 2]


@pytest.mark.parametrize(
    ("name", "parameters", "paper_parameters", "macs", "paper_macs"),
    [
        ("tiny", 85.63, 86, 744.8, 745),
        ("small", 106.95, 107, 836.8, 838),
        ("base", 144.98, 145, 981.3, 982),
    ],
)
def test_sizes_are_those_of_the_papers(
    name: str, parameters: float, paper_parameters: int, macs: float, paper_macs: int
) -> None:
    with torch.device("meta"), FlopCounterMode(display=False) as counter, torch.no_grad():
        model = make_detector(f"swin_{name}_patch4_window7_224").eval()
        model.rpn.head(list(model.backbone(torch.empty(1, 3, 800, 1280)).values()))
        for stage in model.roi_heads.stages:
            stage.box(torch.empty(1000, 256, 7, 7))
            stage.mask(torch.empty(100, 256, 14, 14))
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    billions = counter.get_total_flops() / 2e9
    assert millions == pytest.approx(parameters, abs=0.01)
    assert billions == pytest.approx(macs, rel=1e-3)
    assert (millions, billions) == (pytest.approx(paper_parameters, rel=0.02), pytest.approx(paper_macs, rel=0.02))


IOUS = (0.5, 0.6, 0.7)  # Cascade R-CNN, and the Swin Transformer's detectors
STDS = ((0.1, 0.1, 0.2, 0.2), (0.05, 0.05, 0.1, 0.1), (0.033, 0.033, 0.067, 0.067))
WEIGHTS = (1.0, 0.5, 0.25)


def test_stages_are_those_of_the_papers() -> None:
    assert [tuple(stage) for stage in STAGES] == list(zip(IOUS, STDS, WEIGHTS, strict=True))
    stages = Cascade(SMALL, classes=2).stages
    truth = torch.tensor([[0.0, 0, 100, 100]])
    target = {"boxes": truth, "labels": torch.tensor([1])}
    for stage, iou, std in zip(stages, IOUS, STDS, strict=True):
        below, above = ([0.0, 0, 100, 100 * (iou + by)] for by in (-0.01, 0.01))
        [sampled] = stage.sample([torch.tensor([below, above])], [target])
        assert sampled.match.tolist() == [-1, 0, 0]  # the true box itself comes last
        moved = refine(truth, torch.ones(1, 2, 4), torch.tensor([1]), stage.code)
        assert_close(moved, torch.tensor([naive_move(truth[0].tolist(), [1.0] * 4, std)]))
    assert (BOX_WEIGHT, POSITIVE_FRACTION, Sizes().samples) == (10.0, 0.25, 512)
    assert (MIN_SCORE, NMS_IOU, MAX_DETECTIONS) == (0.05, 0.5, 100)


def test_region_proposals_are_those_of_the_papers() -> None:
    network = region_proposals(Sizes())
    assert Anchors().sizes == ((32,), (64,), (128,), (256,), (512,))
    assert Anchors().aspect_ratios == ((0.5, 1.0, 2.0),) * 5
    sampler, matcher = network.fg_bg_sampler, network.proposal_matcher
    assert (sampler.batch_size_per_image, sampler.positive_fraction, network.nms_thresh) == (256, 0.5, 0.7)
    assert (matcher.high_threshold, matcher.low_threshold) == (0.7, 0.3)
    for training, most in ((True, 2000), (False, 1000)):
        network.train(training)
        assert (network.pre_nms_top_n(), network.post_nms_top_n()) == (most, most)


def test_losses_are_weighted_by_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    cascade = Cascade(SMALL, classes=2)
    for stage in cascade.stages:
        monkeypatch.setattr(stage, "box_losses", lambda *given: {"class": torch.ones(()), "box": torch.ones(())})
        monkeypatch.setattr(stage, "mask_loss", lambda *given: torch.ones(()))
    truth = torch.tensor([[20.0, 24, 60, 70]])
    target = {"boxes": truth, "labels": torch.tensor([1]), "masks": torch.ones(1, 128, 128)}
    features = {str(stride): torch.zeros(1, 32, 128 // stride, 128 // stride) for stride in ALL_STRIDES}
    _, losses = cascade(features, [truth + 1], [(128, 128)], [target])
    expected = {f"stage{n}_{name}": w for n, w in enumerate(WEIGHTS, 1) for name in ("class", "box", "mask")}
    assert {name: float(loss) for name, loss in losses.items()} == expected


@pytest.mark.parametrize("std", STDS)
def test_boxes_move_by_their_own_class(std: tuple[float, float, float, float]) -> None:
    boxes, deltas, classes = random_boxes(6), torch.randn(6, 3, 4), torch.tensor([0, 2, 1, 1, 0, 2])
    code = coder(std)
    expected = [
        naive_move(box, shift[kind], std)
        for box, shift, kind in zip(boxes.tolist(), deltas.tolist(), classes.tolist(), strict=True)
    ]
    moved = refine(boxes, deltas, classes, code)
    assert_close(moved, torch.tensor(expected), atol=1e-3, rtol=1e-4)
    everything = refine_all(boxes, deltas, code, (80, 90))
    limits = torch.tensor([90.0, 80, 90, 80])
    assert_close(everything[torch.arange(6), classes], moved.clamp(min=0).minimum(limits))


def test_what_is_coded_is_found_again() -> None:
    boxes, truth = random_boxes(5), random_boxes(5)
    for std in STDS:
        code = coder(std)
        deltas = code.encode_single(truth, boxes)
        assert_close(
            refine(boxes, deltas[:, None], torch.zeros(5, dtype=torch.long), code), truth, atol=1e-3, rtol=1e-4
        )


def test_boxes_belong_to_the_truth_that_they_overlap_most() -> None:
    boxes, truth = random_boxes(300), random_boxes(8)
    for iou in (0.3, 0.5, 0.7):
        expected = []
        for box in boxes.tolist():
            overlaps = [naive_overlap(box, other)[0] for other in truth.tolist()]
            expected.append(overlaps.index(max(overlaps)) if max(overlaps) >= iou else -1)
        assert assign(boxes, truth, iou).tolist() == expected
        assert max(expected) >= 0 or iou > 0.5
    assert assign(boxes, truth[:0], 0.5).tolist() == [-1] * 300


def test_a_stage_is_trained_on_a_balanced_choice() -> None:
    truth = random_boxes(3)
    near = truth.repeat(40, 1) + torch.rand(120, 4)
    chosen = sample_boxes(torch.cat([near, random_boxes(200) + 200]), truth, 0.5, 64, 0.25)
    assert (len(chosen.boxes), len(chosen.matched)) == (64, 16)
    assert_close(assign(chosen.boxes, truth, 0.5), chosen.match)
    few = sample_boxes(random_boxes(20) + 200, truth, 0.5, 64, 0.25)  # what there is, and the true boxes
    assert_close(few.boxes[few.added], truth)
    assert few.match[few.added].tolist() == [0, 1, 2]
    assert few.classes(torch.tensor([7, 5, 6]), background=9).tolist() == [9] * 20 + [7, 5, 6]


def test_anchors_match_from_a_lower_overlap_on_if_they_are_the_best() -> None:
    overlaps = torch.rand(6, 200) ** 4
    overlaps[0] *= 0.25 / overlaps[0].max()  # not even the best is good enough
    overlaps[1] *= 0.5 / overlaps[1].max()
    expected = []
    for anchor in overlaps.T.tolist():
        best = anchor.index(max(anchor))
        favourite = any(
            value == max(row) and value >= 0.3 for value, row in zip(anchor, overlaps.tolist(), strict=True)
        )
        expected.append(best if max(anchor) >= 0.7 or favourite else -1 if max(anchor) < 0.3 else -2)
    assert AnchorMatcher()(overlaps).tolist() == expected
    assert set(expected) >= {-2, -1, 1}
    assert overlaps[1].argmax().item() not in torch.where(overlaps.amax(0) >= 0.7)[0].tolist()


def test_anchors_stand_on_their_strides_also_where_levels_are_odd() -> None:
    grids = [(200, 320), (100, 160), (50, 80), (25, 40), (13, 20)]  # of 800×1280; 800 / 13 is not 64
    images = ImageList(torch.empty(1, 3, 800, 1280), [(800, 1280)])
    [anchors] = Anchors()(images, [torch.empty(1, 1, *grid) for grid in grids])
    place = 0
    for (rows, columns), stride in zip(grids, ALL_STRIDES, strict=True):
        for row, column in ((0, 0), (3, 5), (rows - 1, columns - 1)):
            found = anchors[place + 3 * (row * columns + column) :][:3]
            sides = [(8 * stride / math.sqrt(ratio), 8 * stride * math.sqrt(ratio)) for ratio in (0.5, 1, 2)]
            x, y = column * stride, row * stride
            expected = [(x - w / 2, y - h / 2, x + w / 2, y + h / 2) for w, h in sides]
            assert_close(found, torch.tensor(expected))
        place += 3 * rows * columns
    assert place == len(anchors)


def test_anchors_can_be_smaller() -> None:
    images = ImageList(torch.empty(1, 3, 64, 64), [(64, 64)])
    levels = [torch.empty(1, 1, 64 // stride, 64 // stride) for stride in ALL_STRIDES]
    [usual], [half] = Anchors()(images, levels), region_proposals(Sizes(anchor=4)).anchor_generator(images, levels)
    middles = (usual[:, :2] + usual[:, 2:]) / 2
    assert_close((half[:, :2] + half[:, 2:]) / 2, middles)
    assert_close(half - middles.repeat(1, 2), (usual - middles.repeat(1, 2)) / 2)


def test_padding_is_no_background_to_learn_from() -> None:
    network = region_proposals(SMALL)
    middles = torch.tensor([[10.0, 10], [50, 10], [10, 50], [39, 29], [40, 29], [39, 30], [34, 20]])
    anchors = torch.cat([middles - 8, middles + 8], 1)
    target = {"boxes": torch.tensor([[24.0, 14, 40, 30]]), "masks": torch.zeros(1, 30, 40)}  # in a larger batch
    labels, _ = network.assign_targets_to_anchors([anchors, anchors], [target, empty(30, 40)])
    assert labels[0].tolist() == [0, -1, -1, 0, -1, -1, 1]
    assert labels[1].tolist() == [0, -1, -1, 0, -1, -1, 0]
    target["boxes"] = torch.tensor([[32.0, 22, 40, 30]])
    [label], _ = network.assign_targets_to_anchors([torch.tensor([[36.0, 22, 44, 30]])], [target])
    assert label == 1  # the best that there is, though its middle is outside


def test_features_come_from_the_level_of_the_size_and_from_the_place() -> None:
    boxes = torch.tensor([[40.0, 60, 90, 120], [100, 80, 230, 220], [30, 50, 300, 290], [64, 64, 512, 540]])
    levels = [int(max(0, min(3, math.floor(math.log2(math.sqrt((r - a) * (b - t)) / 56))))) for a, t, r, b in boxes]
    assert level_of(boxes).tolist() == levels == [0, 1, 2, 3]
    features = []
    for level, stride in enumerate(STRIDES):
        middles = (torch.arange(640 // stride) + 0.5) * stride
        y, x = torch.meshgrid(middles, middles, indexing="ij")
        features.append(torch.stack([torch.full_like(x, level), x, y])[None].expand(2, -1, -1, -1))
    pieces = cut(features, [boxes[:1], boxes[1:]], 7)
    for piece, level, (left, top, right, bottom) in zip(pieces, levels, boxes.tolist(), strict=True):
        assert (piece[0] == level).all()
        parts = (torch.arange(7) + 0.5) / 7
        assert_close(piece[1], (left + parts * (right - left)).expand(7, 7), atol=1e-2, rtol=1e-4)
        assert_close(piece[2], (top + parts * (bottom - top))[:, None].expand(7, 7), atol=1e-2, rtol=1e-4)


def test_images_of_a_batch_are_not_mixed_up() -> None:
    features = [torch.arange(2.0).view(2, 1, 1, 1).expand(2, 1, 640 // stride, 640 // stride) for stride in STRIDES]
    boxes = random_boxes(5, 300).clamp(min=20)
    assert cut(features, [boxes[:2], boxes[2:]], 7).mean((1, 2, 3)).tolist() == [0, 0, 1, 1, 1]


def test_masks_are_pasted_where_they_were_cut_out() -> None:
    scene = World("train", 4, size=128, objects=2)[2]
    masks = torch.stack([torch.from_numpy(scene.mask) == number for number in (1, 2)])
    boxes = torch.from_numpy(scene.boxes)
    cuts = cut_masks(masks, boxes, torch.arange(2), 28)
    again = paste(cuts, boxes, (128, 128))
    iou = (again & masks).sum((1, 2)) / (again | masks).sum((1, 2))
    assert (iou > 0.9).all()
    assert_close(cut_masks(masks, boxes.flip(0), torch.tensor([1, 0]), 28), cuts.flip(0))
    left, top = boxes[1, :2].int().tolist()
    square = torch.tensor([[left, top, left + 28, top + 28]], dtype=torch.float32)  # a pixel of the mask for each cell
    assert_close(cut_masks(masks, square, torch.tensor([1]), 28)[0], masks[1, top : top + 28, left : left + 28].float())


def test_pasting_is_bilinear() -> None:
    mask, (left, top, right, bottom) = torch.rand(4, 4), (3.3, 2.6, 12.9, 9.1)

    def at(row: int, column: int) -> float:
        return float(mask[row, column]) if 0 <= row < 4 and 0 <= column < 4 else 0.0

    expected = torch.zeros(10, 16, dtype=torch.bool)
    for pixel_row in range(10):
        for pixel_column in range(16):
            y = (pixel_row + 0.5 - top) / (bottom - top) * 4 - 0.5
            x = (pixel_column + 0.5 - left) / (right - left) * 4 - 0.5
            row, column = math.floor(y), math.floor(x)
            down, along = y - row, x - column
            upper = (1 - along) * at(row, column) + along * at(row, column + 1)
            lower = (1 - along) * at(row + 1, column) + along * at(row + 1, column + 1)
            expected[pixel_row, pixel_column] = (1 - down) * upper + down * lower > 0.5
    outside = torch.tensor([[3.3, 2.6, 12.9, 9.1], [16, 10, 16, 10]])
    pasted = paste(mask.expand(2, 4, 4), outside, (10, 16))
    assert expected.any()
    assert_close(pasted[0], expected)
    assert not pasted[1].any()


def test_losses_of_a_stage_against_the_equations() -> None:
    stage = Stage(STAGES[1], SMALL, classes=3)
    truth, boxes = random_boxes(2), random_boxes(6)
    chosen = SampledBoxes(boxes, torch.tensor([-1, 1, 0, -1, 1, -1]), torch.zeros(6, dtype=torch.bool))
    targets = [{"boxes": truth, "labels": torch.tensor([2, 0])}]
    classes = chosen.classes(targets[0]["labels"], 3)
    assert classes.tolist() == [3, 0, 2, 3, 0, 3]
    prediction = BoxPrediction(torch.randn(6, 4), torch.randn(6, 3, 4, requires_grad=True))
    losses = stage.box_losses(prediction, [chosen], targets, classes)
    missed = 0.0
    for number, true, kind in ((1, 1, 0), (2, 0, 2), (4, 1, 0)):
        moved = naive_move(boxes[number].tolist(), prediction.deltas[number, kind].tolist(), STDS[1])
        missed += 1 - naive_overlap(moved, truth[true].tolist())[1]
    assert losses["box"].item() == pytest.approx(10 * missed / 6, rel=1e-4)
    likelihood = prediction.logits.softmax(1)[torch.arange(6), classes]
    assert_close(losses["class"], -likelihood.log().mean())
    losses["box"].backward()
    moved_by = prediction.deltas.grad.abs().sum(2).nonzero().tolist()
    assert moved_by == [[1, 0], [2, 2], [4, 0]]  # no other class learns from a box


def test_mask_loss_is_that_of_the_own_class() -> None:
    logits, truth, classes = torch.randn(3, 5, 28, 28), (torch.rand(3, 28, 28) > 0.5).float(), torch.tensor([4, 0, 2])
    shares = torch.stack([logits[number, kind] for number, kind in enumerate(classes.tolist())]).sigmoid()
    expected = -(truth * shares.log() + (1 - truth) * (1 - shares).log()).mean()
    assert_close(mask_loss(own_masks(logits, classes), truth), expected)


class Says(nn.Module):
    """A head that always predicts the same."""

    def __init__(self, prediction: BoxPrediction | Tensor) -> None:
        super().__init__()
        self.prediction = prediction

    def forward(self, features: Tensor) -> BoxPrediction | Tensor:
        fixed = self.prediction
        return fixed if isinstance(fixed, BoxPrediction) else fixed.expand(len(features), -1, -1, -1)


def test_three_stages_refine_boxes_one_after_another_and_are_averaged() -> None:
    cascade = Cascade(SMALL, classes=2).eval()
    proposal = [20.0, 24, 60, 70]
    logits = torch.tensor([[[3.0, 0.5, 0]], [[0.2, 2.5, 0]], [[0, 4.0, 1]]])  # the likeliest: 0, 1, 1
    deltas, masks = torch.randn(3, 1, 2, 4), torch.randn(3, 1, 2, 28, 28)
    for number, stage in enumerate(cascade.stages):
        stage.box, stage.mask = Says(BoxPrediction(logits[number], deltas[number])), Says(masks[number])
    features = {str(stride): torch.zeros(1, 32, 128 // stride, 128 // stride) for stride in ALL_STRIDES}
    [found], losses = cascade(features, [torch.tensor([proposal])], [(128, 128)])
    assert losses == {}
    first = naive_move(proposal, deltas[0, 0, 0].tolist(), STDS[0])
    second = naive_move(first, deltas[1, 0, 1].tolist(), STDS[1])
    last = [naive_move(second, deltas[2, 0, kind].tolist(), STDS[2]) for kind in (1, 0)]
    scores = logits.softmax(2).mean(0)[0]
    assert found["labels"].tolist() == [1, 0]  # the better one comes first
    assert_close(found["scores"], scores[[1, 0]])
    assert_close(found["boxes"], torch.tensor(last), atol=1e-3, rtol=1e-4)
    assert_close(found["masks"], masks[:, 0].sigmoid().mean(0)[[1, 0]])
    assert all(naive_overlap(one, other)[0] < 0.999 for one, other in pairwise([proposal, first, second, last[0]]))


class Moves(nn.Module):
    """A box head that knows no class and moves every box a little, each class its own way."""

    def forward(self, features: Tensor) -> BoxPrediction:
        logits = features.new_tensor([1.0, 0, 3]).expand(len(features), 3)
        deltas = torch.tensor([[0.5, -0.5, 0.2, 0.1], [-0.4, 0.3, -0.2, 0.3]]).expand(len(features), 2, 4)
        return BoxPrediction(logits, deltas)


def test_in_training_a_stage_gets_what_the_one_before_has_refined_without_the_truth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cascade = Cascade(SMALL, classes=2)
    truth, proposals = torch.tensor([[20.0, 24, 60, 70]]), torch.tensor([[22.0, 22, 62, 68], [70, 60, 110, 90]])
    target = {"boxes": truth, "labels": torch.tensor([1]), "masks": torch.ones(1, 128, 128)}
    seen = []
    for stage in cascade.stages:
        stage.box = Moves()
        stage.box.classes = 2
        monkeypatch.setattr(stage, "sample", lambda *given, own=stage.sample: seen.append(given[0][0]) or own(*given))
    features = {str(stride): torch.zeros(1, 32, 128 // stride, 128 // stride) for stride in ALL_STRIDES}
    cascade(features, [proposals], [(128, 128)], [target])
    expected = proposals.tolist()
    for boxes, iou, std in zip(seen, IOUS, STDS, strict=True):
        assert_close(boxes, torch.tensor(expected), atol=1e-3, rtol=1e-4)
        kinds = (int(naive_overlap(box, truth[0].tolist())[0] >= iou) for box in expected)
        deltas = Moves()(proposals).deltas[0].tolist()  # of its true class, or of the likeliest one
        expected = [naive_move(box, deltas[kind], std) for box, kind in zip(expected, kinds, strict=True)]


def test_detections_of_a_class_do_not_lie_on_one_another() -> None:
    boxes = torch.tensor([[10.0, 10, 50, 50], [12, 10, 52, 50], [10, 10, 50, 50], [60, 60, 90, 90]])[:, None]
    scores = torch.tensor([[0.8, 0.0], [0.9, 0.0], [0.0, 0.7], [0.04, 0.06]])
    found = pick(boxes.expand(-1, 2, -1), scores)
    assert list(zip(found["labels"].tolist(), found["boxes"][:, 0].tolist(), strict=True)) == [
        (0, 12),
        (1, 10),
        (1, 60),
    ]
    many = pick((torch.arange(150.0)[:, None] * 20 + torch.tensor([0.0, 0, 9, 9]))[:, None], torch.rand(150, 1) + 0.1)
    assert len(many["scores"]) == 100
    assert_close(many["scores"], many["scores"].sort(descending=True).values)


def scene_target(scene: object) -> tuple[Tensor, dict[str, Tensor]]:
    image = torch.from_numpy(scene.image).permute(2, 0, 1) / 255
    masks = torch.stack([torch.from_numpy(scene.mask) == 1 + number for number in range(len(scene.objects))])
    return image, {
        "boxes": torch.from_numpy(scene.boxes),
        "labels": torch.from_numpy(scene.objects),
        "masks": masks.to(torch.uint8),
    }


def test_overfits_a_scene() -> None:
    image, target = scene_target(World("train", 10, size=64, objects=2)[3])
    model = tiny()
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    for _ in range(50):
        optimiser.zero_grad()
        sum(model([image], [target]).values()).backward()
        optimiser.step()
    model.eval()
    with torch.no_grad():
        [found] = model([F.interpolate(image[None], (96, 96))[0]])  # which it resizes to 64×64
    for box, label, mask in zip(target["boxes"], target["labels"], target["masks"], strict=True):
        own = {name: part[found["labels"] == label] for name, part in found.items()}
        assert own["scores"][0] > 0.3
        assert box_iou(1.5 * box[None], own["boxes"][:1]) > 0.5
        large = F.interpolate(mask[None, None].float(), (96, 96))[0, 0] > 0.5
        assert (own["masks"][0] & large).sum() / (own["masks"][0] | large).sum() > 0.5


def empty(height: int, width: int) -> dict[str, Tensor]:
    return {
        "boxes": torch.zeros(0, 4),
        "labels": torch.zeros(0, dtype=torch.long),
        "masks": torch.zeros(0, height, width),
    }


def test_images_without_objects_teach_the_background_and_reach_every_parameter() -> None:
    model = tiny()
    losses = model([torch.rand(3, 64, 64), torch.rand(3, 40, 72)], [empty(64, 64), empty(40, 72)])
    assert list(losses) == [
        *(f"stage{number}_{name}" for number in (1, 2, 3) for name in ("class", "box", "mask")),
        *("region_class", "region_box"),
    ]
    for name, loss in losses.items():
        assert (loss == 0) == name.endswith(("box", "mask"))
    sum(losses.values()).backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_stages_weigh_less_and_less() -> None:
    classes = 10
    losses = tiny(classes=classes)([torch.rand(3, 64, 64)], [empty(64, 64)])
    for name, weight in (("stage1_class", 1), ("stage2_class", 0.5), ("stage3_class", 0.25)):
        assert losses[name].item() == pytest.approx(weight * math.log(classes + 1), rel=0.1)  # knows nothing yet


def test_boxes_stay_exact_under_autocast_and_images_as_they_are() -> None:
    image, target = scene_target(World("train", 10, size=64, objects=2)[3])
    model = tiny(side=48)
    seen = []
    model.roi_heads.register_forward_pre_hook(lambda _, inputs: seen.append(inputs))
    with torch.autocast("cpu", torch.bfloat16):
        losses = model([image], [target])
    features, [proposals], sizes, _ = seen[0]
    assert sizes == [(64, 64)]  # images are resized in evaluation only
    assert {proposals.dtype, *(level.dtype for level in features.values())} == {torch.float32}
    assert all(loss.dtype == torch.float32 and loss.isfinite() for loss in losses.values())


def test_detections_are_in_the_pixels_of_their_image() -> None:
    model = tiny(side=48).eval()
    for stage in model.roi_heads.stages:
        nn.init.normal_(stage.box.classify.weight)  # sure of something
    with torch.no_grad():
        found = model([torch.rand(3, 60, 100), torch.rand(3, 90, 70)])
    for one, (height, width) in zip(found, ((60, 100), (90, 70)), strict=True):
        assert len(one["boxes"]) == len(one["labels"]) == len(one["scores"]) > 0
        assert (one["masks"].shape, one["masks"].dtype) == ((len(one["boxes"]), height, width), torch.bool)
        assert (one["boxes"] >= 0).all()
        assert (one["boxes"] <= torch.tensor([width, height, width, height]) + 1e-3).all()
        assert one["boxes"][:, 2].max() > 0.8 * width  # not those of the resized image


def test_evaluation_sees_images_as_training_does() -> None:
    image = (255 * torch.rand(3, 90, 130)).byte()
    resizing = make_detector(TINY, 3, sizes=SMALL, short_side=32, long_side=40).transform.eval()
    sample = Sample(image, torch.zeros(0, 4), torch.zeros(0, dtype=torch.long), image[:0], 0)
    expected = resize(sample, 32, 40).image / 255
    shown, _ = resizing([image / 255])
    assert shown.image_sizes == [(28, 40)]
    assert shown.tensors.shape == (1, 3, 32, 64)
    mean, std = (torch.tensor(values)[:, None, None] for values in (resizing.image_mean, resizing.image_std))
    assert_close(shown.tensors[0, :, :28, :40] * std + mean, expected, atol=1 / 255, rtol=0)
    assert (shown.tensors[0, :, 28:] == 0).all()


def test_other_backbones() -> None:
    model = make_detector("convnext_atto", 3, sizes=SMALL, short_side=64)
    assert len(model([torch.rand(3, 64, 64)], [empty(64, 64)])) == 11
    with (
        torch.device("meta"),
        pytest.raises(ValueError, match=r"needs levels at strides 4, 8, 16 and 32; those of lvvit"),
    ):
        make_detector("lvvit_t", 3)


def test_starts_from_a_classifier(tmp_path: Path) -> None:
    classifier = create(TINY, num_classes=7)
    torch.save(classifier.state_dict(), tmp_path / "weights.pth")
    weights = make_detector(TINY, 3, str(tmp_path / "weights.pth"), sizes=SMALL).backbone.levels.model.state_dict()
    given = classifier.state_dict()
    assert {name.split(".")[0] for name in given.keys() - weights.keys()} == {"norm", "head"}
    for name, weight in weights.items():
        assert_close(weight, given[name])


GOOD = {
    "boxes": torch.tensor([[4.0, 4, 20, 30], [10, 10, 64, 40]]),
    "labels": torch.tensor([0, 9]),
    "masks": torch.ones(2, 48, 64, dtype=torch.uint8),
}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"boxes": torch.tensor([[4.0, 4, 20, 30], [10, 10, 70, 40]])}, r"box 1 of image 0, \[10.0, .* outside of the"),
        (
            {"boxes": torch.tensor([[-9.0, 4, 20, 30], [10, 10, 60, 40]])},
            "box 0 of image 0, .* is outside of the image",
        ),
        ({"boxes": torch.tensor([[4.0, 4, 20, 30], [10, 10, 10, 40]])}, "box 1 of image 0, .* has no area"),
        ({"boxes": torch.tensor([[20.0, 4, 4, 30], [10, 10, 60, 40]])}, "box 0 of image 0, .* has no area"),
        ({"boxes": torch.tensor([[4.0, math.nan, 20, 30], [10, 10, 60, 40]])}, "box 0 of image 0, .* is not a number"),
        ({"boxes": torch.zeros(0)}, r"boxes of image 0 must be \(T, 4\), not \(0,\); \(0, 4\) if there is none"),
        ({"labels": torch.tensor([0, 10])}, "of class 10, is of a class that there isn't: there are 0 to 9"),
        ({"labels": torch.tensor([-1, 9])}, "of class -1, is of a class that there isn't"),
        ({"labels": torch.tensor([3])}, r"has 2 boxes, but labels \(1,\): one for each box is needed"),
        ({"masks": torch.ones(2, 64, 48)}, r"masks of image 0 must be \(2, 48, 64\), .* not \(2, 64, 48\)"),
    ],
)
def test_wrong_targets_are_told(wrong: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DETECTOR([torch.rand(3, 48, 64)], [{**GOOD, **wrong}])


def test_wrong_calls_are_told() -> None:
    image = torch.rand(3, 48, 64)
    for images, targets, message in (
        ([], [], "there is no image"),
        ([image], None, "training needs a target for each of 1 images, not 0"),
        ([image], [GOOD, GOOD], "a target for each of 1 images, not 2"),
        ([image], [{"boxes": GOOD["boxes"], "labels": GOOD["labels"]}], "the target of image 0 has no masks"),
        ([(255 * image).byte()], [GOOD], r"image 0 must be \(3, H, W\), floating from 0 to 1, not \(3, 48, 64\)"),
        ([image[0]], [GOOD], r"image 0 must be \(3, H, W\)"),
    ):
        with pytest.raises(ValueError, match=message):
            DETECTOR(images, targets)
    with pytest.raises(ValueError, match="classes, background aside, must be at least 1, not 0"):
        make_detector(TINY, 0)
    with pytest.raises(ValueError, match="samples must be at least 1, not 0"):
        Sizes(samples=0)


with torch.device("meta"):
    DETECTOR = tiny()  # never asked further than its checks
