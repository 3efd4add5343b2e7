"""Average precision: cases worked out by hand, a naive version of the definition, and the reference evaluator."""

import contextlib
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from labelflow.tasks.detect.data import Sample, as_coco, open_source
from labelflow.tasks.detect.metrics import Detections, as_results, on_main, scores_and_classes
from labelflow.tasks.detect.settings import DetectData

pytest.importorskip("faster_coco_eval")


def rectangles(boxes: Tensor, size: int = 100) -> Tensor:
    """Masks that fill boxes."""
    masks = torch.zeros(len(boxes), size, size, dtype=torch.uint8)
    for mask, (left, top, right, bottom) in zip(masks, boxes.round().int().tolist(), strict=True):
        mask[top:bottom, left:right] = 1
    return masks


def true(*boxes: list[float], labels: list[int], number: int = 0) -> Sample:
    corners = torch.tensor(boxes)
    return Sample(torch.zeros(3, 100, 100), corners, torch.tensor(labels), rectangles(corners), number)


def found(*boxes: list[float], labels: list[int], confidence: list[float]) -> dict[str, Tensor]:
    corners = torch.tensor(boxes)
    parts = {"boxes": corners, "labels": torch.tensor(labels), "scores": torch.tensor(confidence)}
    return {**parts, "masks": rectangles(corners).bool()}


def scores(truth: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, float]:
    """Over all images."""
    return scores_and_classes(truth, results, [one["id"] for one in truth["images"]])[0]


CATEGORIES, CLASSES = [3, 17], ["cat", "dog"]


def both(truth: dict[str, Any], results: list[dict[str, Any]], *expected: float) -> None:
    told = scores(truth, results)
    for kind in ("box", "mask"):
        assert [told[f"{kind}_{name}"] for name in ("ap", "ap50", "ap75")] == pytest.approx(expected, abs=1e-6)


def test_cases_worked_out_by_hand() -> None:
    one = as_coco([true([0.0, 0, 100, 100], labels=[0])], CATEGORIES, CLASSES)
    exact = as_results(found([0.0, 0, 100, 100], labels=[0], confidence=[0.4]), 0, CATEGORIES)
    both(one, exact, 100, 100, 100)
    # IoU 0.78: a hit at 0.5, 0.55, …, 0.75, six of ten thresholds
    near = as_results(found([0.0, 0, 100, 78], labels=[0], confidence=[0.4]), 0, CATEGORIES)
    both(one, near, 60, 100, 100)
    # IoU 0.52: at 0.5 alone
    far = as_results(found([0.0, 0, 100, 52], labels=[0], confidence=[0.4]), 0, CATEGORIES)
    both(one, far, 10, 100, 0)
    # a surer false one before it: precision ½ at every recall
    doubled = as_results(found([0.0, 0, 20, 20], labels=[0], confidence=[0.9]), 0, CATEGORIES) + exact
    both(one, doubled, 50, 50, 50)
    wrong = as_results(found([0.0, 0, 100, 100], labels=[1], confidence=[0.4]), 0, CATEGORIES)
    both(one, wrong, 0, 0, 0)
    both(one, [], 0, 0, 0)
    # of two, one is found: precision 1 up to recall ½, 51 of 101 points
    two = as_coco([true([0.0, 0, 40, 40], [50.0, 50, 90, 90], labels=[0, 0])], CATEGORIES, CLASSES)
    half = as_results(found([0.0, 0, 40, 40], labels=[0], confidence=[0.4]), 0, CATEGORIES)
    both(two, half, *[100 * 51 / 101] * 3)


def test_boxes_are_compared_with_boxes_and_masks_with_masks() -> None:
    truth = as_coco([true([0.0, 0, 40, 40], labels=[0])], CATEGORIES, CLASSES)
    right, wrong = (found(box, labels=[0], confidence=[0.5]) for box in ([0.0, 0, 40, 40], [50.0, 50, 90, 90]))
    for boxes, masks in ((right, wrong), (wrong, right)):
        told = scores(truth, as_results({**boxes, "masks": masks["masks"]}, 0, CATEGORIES))
        expected = (100, 0) if boxes is right else (0, 100)
        assert (told["box_ap"], told["mask_ap"]) == pytest.approx(expected, abs=1e-6)


def test_a_crowd_forgives_and_only_seen_images_count() -> None:
    truth = as_coco([true([0.0, 0, 40, 40], [50.0, 50, 90, 90], labels=[0, 0])], CATEGORIES, CLASSES)
    truth["annotations"][1]["iscrowd"] = 1
    surer = found([52.0, 52, 80, 80], [0.0, 0, 40, 40], labels=[0, 0], confidence=[0.9, 0.5])
    both(truth, as_results(surer, 0, CATEGORIES), 100, 100, 100)
    samples = [true([0.0, 0, 40, 40], labels=[0], number=n) for n in (0, 1)]
    truth = as_coco(samples, CATEGORIES, CLASSES)
    results = as_results(found([0.0, 0, 40, 40], labels=[0], confidence=[0.5]), 1, CATEGORIES)
    assert scores_and_classes(truth, results, [1])[0]["box_ap"] == pytest.approx(100)
    assert scores_and_classes(truth, results, [0, 1])[0]["box_ap"] == pytest.approx(100 * 51 / 101)
    with pytest.raises(ValueError, match="no object"):
        on_main(lambda: scores_and_classes(truth, results, [2]))
    assert on_main(lambda: scores_and_classes(truth, results, [1]))[0]["mask_ap"] == pytest.approx(100)


def test_a_class_that_no_image_shows_has_no_precision_and_one_that_is_not_found_none() -> None:
    truth = as_coco([true([0.0, 0, 40, 40], labels=[1])], CATEGORIES, CLASSES)
    elsewhere = as_results(found([50.0, 50, 90, 90], labels=[1], confidence=[0.5]), 0, CATEGORIES)
    for results in ([], elsewhere):
        classes = scores_and_classes(truth, results, [0])[1]
        for kind in ("box_ap", "mask_ap"):
            assert math.isnan(classes["cat"][kind])
            assert classes["dog"][kind] == 0


def overlap(one: list[float], two: list[float]) -> float:
    """IoU of [left, top, width, height]."""
    width = min(one[0] + one[2], two[0] + two[2]) - max(one[0], two[0])
    height = min(one[1] + one[3], two[1] + two[3]) - max(one[1], two[1])
    both = max(0.0, width) * max(0.0, height)
    return both / (one[2] * one[3] + two[2] * two[3] - both)


def naive_ap(truth: dict[str, Any], results: list[dict[str, Any]], threshold: float, category: int) -> float:
    """Greedy matching, best scores first; precision, made monotone, at 101 recalls."""
    own = [one for one in truth["annotations"] if one["category_id"] == category]
    if not own:
        return math.nan
    taken: set[int] = set()
    hits: list[bool] = []
    for guess in sorted((one for one in results if one["category_id"] == category), key=lambda one: -one["score"]):
        free = [one for one in own if one["image_id"] == guess["image_id"] and one["id"] not in taken]
        best = max(free, key=lambda one: overlap(one["bbox"], guess["bbox"]), default=None)
        hits.append(best is not None and overlap(best["bbox"], guess["bbox"]) >= threshold)
        taken |= {best["id"]} if best is not None and hits[-1] else set()
    recalls = [sum(hits[: n + 1]) / len(own) for n in range(len(hits))]
    precisions = [sum(hits[: n + 1]) / (n + 1) for n in range(len(hits))]
    points = [
        max((p for p, r in zip(precisions, recalls, strict=True) if r >= at / 100), default=0) for at in range(101)
    ]
    return sum(points) / 101


@pytest.fixture(scope="module")
def guesses() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The truth of some scenes, and noisy detections."""
    source = open_source(DetectData(source="world(train=1, val=24, size=64, objects=3)"), "val")
    generator = torch.Generator().manual_seed(2)
    results = []
    for number in range(24):
        sample = source.load(number)
        for _ in range(3):
            noise = 1.5 * torch.randn(sample.boxes.shape, generator=generator)
            boxes = (sample.boxes + noise).clamp(0, 64).round()
            labels = torch.where(torch.rand(3, generator=generator) < 0.2, 4, sample.labels)
            confidence = torch.rand(3, generator=generator)
            seen = {"boxes": boxes, "labels": labels, "scores": confidence, "masks": rectangles(boxes, 64)}
            results += as_results(seen, number, source.categories)
    return source.truth(), results


def test_scores_are_those_of_the_definition(guesses: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    truth, results = guesses
    categories = [one["id"] for one in truth["categories"]]
    table = {
        category: [naive_ap(truth, results, 0.5 + 0.05 * step, category) for step in range(10)]
        for category in categories
    }
    known = [row for row in table.values() if row[0] == row[0]]
    told = scores(truth, results)
    assert told["box_ap"] == pytest.approx(100 * sum(map(sum, known)) / 10 / len(known), abs=1e-4)
    assert told["box_ap50"] == pytest.approx(100 * sum(row[0] for row in known) / len(known), abs=1e-4)
    assert told["box_ap75"] == pytest.approx(100 * sum(row[5] for row in known) / len(known), abs=1e-4)
    assert 5 < told["box_ap"] < 80
    classes = scores_and_classes(truth, results, range(24))[1]
    assert list(classes) == [one["name"] for one in truth["categories"]]
    own = [both["box_ap"] for both in classes.values()]
    assert own == pytest.approx([100 * sum(row) / 10 for row in table.values()], abs=1e-4, nan_ok=True)
    masks = [both["mask_ap"] for both in classes.values() if not math.isnan(both["mask_ap"])]
    assert sum(masks) / len(masks) == pytest.approx(told["mask_ap"])


def reference(truth: dict[str, Any], results: list[dict[str, Any]], kind: str) -> list[float]:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):
        true = COCO()
        true.dataset = json.loads(json.dumps({"info": {}, **truth}))
        true.createIndex()
        own = [{key: value for key, value in one.items() if kind == "bbox" or key != "bbox"} for one in results]
        run = COCOeval(true, true.loadRes(own), kind)
        run.evaluate()
        run.accumulate()
        run.summarize()
    return [100 * float(number) for number in run.stats[:3]]


def test_scores_are_the_reference_evaluators(guesses: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    pytest.importorskip("pycocotools")
    told = list(scores(*guesses).values())
    assert told == pytest.approx(reference(*guesses, "bbox") + reference(*guesses, "segm"), abs=1e-6)


def test_on_real_photographs_the_truth_itself_is_perfect(tmp_path: Path) -> None:
    """And what the reference evaluator says of worse detections, crowds and small objects is what ours says."""
    archive = Path(__file__).parents[4] / "shared/data/coco_tiny.zip"
    if not archive.exists():
        pytest.skip("shared/data/coco_tiny.zip is not there")
    pytest.importorskip("pycocotools")
    import zipfile

    with zipfile.ZipFile(archive) as file:
        file.extractall(tmp_path, [name for name in file.namelist() if "val2017" in name])
    source = open_source(DetectData(source=str(tmp_path)), "val")
    generator = torch.Generator().manual_seed(4)
    perfect, worse = Detections(), Detections()
    for index in range(0, 80, 4):
        sample = source.load(index)
        sure = torch.rand(len(sample.boxes), generator=generator)
        seen = {"boxes": sample.boxes, "labels": sample.labels, "scores": sure, "masks": sample.masks}
        perfect.add(seen, sample.number, source.categories)
        shifts = {"boxes": sample.boxes * 0.98 + 4, "masks": sample.masks.roll((3, 3), (1, 2))}
        worse.add({**seen, **shifts}, sample.number, source.categories)
    told = scores_and_classes(source.truth(), *perfect.take())[0]
    assert told["box_ap50"] > 99.9
    assert told["mask_ap"] > 99.9
    assert perfect.results == []
    results, numbers = worse.take()
    told = scores_and_classes(source.truth(), results, numbers)[0]
    part = {**source.truth(), "images": [one for one in source.truth()["images"] if one["id"] in numbers]}
    part["annotations"] = [one for one in part["annotations"] if one["image_id"] in numbers]
    expected = reference(part, results, "bbox") + reference(part, results, "segm")
    assert list(told.values()) == pytest.approx(expected, abs=1e-6)
    assert 5 < told["mask_ap"] < 95
