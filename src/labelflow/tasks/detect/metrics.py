"""Average precision as COCO defines it, by its maintained evaluator, faster-coco-eval."""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from torch import Tensor

from labelflow.tasks.detect.coco import Entry, encode, evaluator

KINDS = {"box": "bbox", "mask": "segm"}
NAMES = ("ap", "ap50", "ap75")  # the first three of the evaluator's numbers


class Detections:
    """What a detector found in an evaluation, image by image; each process has its own part."""

    def __init__(self) -> None:
        self.results: list[Entry] = []
        self.numbers: list[int] = []

    def add(self, found: dict[str, Tensor], number: int, categories: Sequence[int]) -> None:
        """What was found in one image: boxes (N, 4), labels (N,), scores (N,), masks (N, H, W), in its own pixels."""
        self.results += as_results(found, number, categories)
        self.numbers.append(number)

    def take(self) -> tuple[list[Entry], list[int]]:
        """What all processes found, and the ids of the images that they saw; then it starts anew."""
        taken = gather_object(self.results), gather_object(self.numbers)
        self.results, self.numbers = [], []
        return taken


def on_main(compute: Callable[[], Any]) -> Any:
    """What the main process computes, sent to all. An error there is raised in all of them: none waits forever."""
    result: list[Any] = [None]
    if PartialState().is_main_process:
        try:
            result = [compute()]
        except Exception as error:
            result = [error]
    (found,) = broadcast_object_list(result)
    if isinstance(found, Exception):
        raise found
    return found


def as_results(found: dict[str, Tensor], number: int, categories: Sequence[int]) -> list[Entry]:
    """Detections in COCO's format for results."""
    corners = found["boxes"].cpu().double().tolist()
    rows = zip(corners, found["labels"].tolist(), found["scores"].tolist(), encode(found["masks"]), strict=True)
    return [
        {
            "image_id": number,
            "category_id": categories[label],
            "bbox": [left, top, right - left, bottom - top],
            "score": score,
            "segmentation": runs,
        }
        for (left, top, right, bottom), label, score, runs in rows
    ]


def scores_and_classes(
    truth: Entry, results: list[Entry], images: Collection[int]
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Over these images: `box_ap`, `box_ap50`, `box_ap75`, `mask_ap`, … in percent; and of each class, `box_ap` and
    `mask_ap`, nan where no image shows it."""
    if not _objects(truth, images):
        raise ValueError("there is no object to evaluate on: no image has an annotation that is not a crowd")
    found: dict[str, float] = {}
    classes: dict[str, dict[str, float]] = defaultdict(dict)
    for kind in KINDS:
        evaluated = _evaluate(truth, results, kind, images)
        numbers = [0.0] * len(NAMES) if evaluated is None else evaluated.stats[: len(NAMES)]
        found |= {f"{kind}_{name}": 100 * float(number) for name, number in zip(NAMES, numbers, strict=True)}
        for name, number in _classes(evaluated, truth, images).items():
            classes[name][f"{kind}_ap"] = number
    return found, dict(classes)


def _classes(evaluated: Any, truth: Entry, images: Collection[int]) -> dict[str, float]:
    names = {entry["id"]: str(entry["name"]) for entry in truth["categories"]}
    if evaluated is None:
        seen = {one["category_id"] for one in _objects(truth, images)}
        return {names[number]: 0.0 if number in seen else float("nan") for number in sorted(names)}
    precision = evaluated.eval["precision"][:, :, :, 0, -1]  # IoU, recall, class; all areas, most detections
    found = {}
    for index, number in enumerate(evaluated.params.catIds):
        known = precision[:, :, index][precision[:, :, index] > -1]
        found[names[number]] = 100 * float(known.mean()) if known.size else float("nan")
    return found


def _evaluate(truth: Entry, results: list[Entry], kind: str, images: Collection[int]) -> Any:
    """The evaluator after its work, or None where nothing was found."""
    if not results:
        return None
    coco = evaluator()
    # Small, medium and large are decided by the area of what is compared: boxes, or masks.
    left_out = {"segmentation"} if kind == "box" else {"bbox"}
    own = [{key: value for key, value in one.items() if key not in left_out} for one in results]
    true = coco.COCO(truth, use_deepcopy=True)
    evaluated = coco.COCOeval_faster(true, true.loadRes(own), KINDS[kind], print_function=_quiet)
    evaluated.params.imgIds = sorted(set(images))
    with np.errstate(all="ignore"):
        evaluated.evaluate()
        evaluated.accumulate()
        evaluated.summarize()
    return evaluated


def _objects(truth: Entry, images: Collection[int]) -> list[Entry]:
    wanted = set(images)
    return [one for one in truth["annotations"] if not one["iscrowd"] and one["image_id"] in wanted]


def _quiet(*said: object) -> None:
    pass
