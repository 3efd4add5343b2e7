"""COCO's format: what an annotation file must hold, and masks as polygons and run lengths."""

import json
import math
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

OUTSIDE = 1.0  # pixels by which a box may leave its image: rounding
FIELDS = {
    "images": ("file_name", "height", "width"),
    "categories": ("name",),
    "annotations": ("image_id", "category_id", "bbox"),
}
Entry = dict[str, Any]


def read_annotations(file: Path) -> Entry:
    """The content of a COCO file whose parts fit together; each annotation has an iscrowd, 0 or 1."""
    try:
        content = json.loads(file.read_bytes())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is not JSON: {error}") from None
    missing = [key for key in FIELDS if not isinstance(content, dict) or not isinstance(content.get(key), list)]
    if missing:
        raise ValueError(f"{file} is not in COCO's format: it has no {', no '.join(missing)}; each must be a list")
    ids: dict[str, set[int]] = {}
    for key, fields in FIELDS.items():
        needed = {"id", *fields}
        lacking = [entry for entry in content[key] if not isinstance(entry, dict) or not needed <= entry.keys()]
        if lacking:
            raise ValueError(f"{file}: each of {key} needs id, {', '.join(fields)}; one is {str(lacking[0])[:200]}")
        numbers = [entry["id"] for entry in content[key]]
        odd = [number for number in numbers if not isinstance(number, int)]
        if odd:
            raise ValueError(f"{file}: ids must be integers; one of {key} is {odd[0]!r}")
        ids[key] = set(numbers)
        if len(ids[key]) < len(numbers):
            raise ValueError(f"{file}: two of {key} have the same id")
    _check_images(file, content["images"])
    names = [str(entry["name"]) for entry in content["categories"]]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{file}: two categories are called {twice[0]!r}; give each class one name and one id")
    for entry in content["annotations"]:
        for field, key in (("image_id", "images"), ("category_id", "categories")):
            if not isinstance(entry[field], int) or entry[field] not in ids[key]:
                raise ValueError(f"{file}: annotation {entry['id']} is of {field} {entry[field]}, which {key} lacks")
        entry["iscrowd"] = _crowd(file, entry)
    return content


def sound_objects(file: Path, content: Entry, drop: bool) -> list[Entry]:
    """The annotations whose boxes and masks fit their images; others are dropped, or refused with a `ValueError`."""
    sizes = image_sizes(content)
    sound = []
    for entry in content["annotations"]:
        size, which = sizes[entry["image_id"]], f"of annotation {entry['id']}"
        wrong_box = box_problem(entry["bbox"], size)
        wrong_mask = _mask_problem(entry.get("segmentation"), size)
        if not wrong_box and not wrong_mask:
            sound.append(entry)
        elif not drop:
            problem = f"box {which}, {entry['bbox']}, {wrong_box}" if wrong_box else f"mask {which} {wrong_mask}"
            raise ValueError(f"{file}: the {problem}; fix it, or drop such objects with --bad-objects drop")
    return sound


def image_sizes(content: Entry) -> dict[int, tuple[int, int]]:
    """(H, W) of each image, by its id."""
    return {entry["id"]: (entry["height"], entry["width"]) for entry in content["images"]}


def _check_images(file: Path, images: list[Entry]) -> None:
    for entry in images:
        name, sides = entry["file_name"], (entry["height"], entry["width"])
        if not isinstance(name, str):
            raise ValueError(f"{file}: the file_name of image {entry['id']} must be a string, not {name!r}")
        if not all(isinstance(side, int) and side > 0 for side in sides):
            raise ValueError(f"{file}: height and width of image {entry['id']} must be numbers of pixels, not {sides}")


def _crowd(file: Path, annotation: Entry) -> int:
    """0 or 1; 0 where an annotation does not say, as COCO's evaluator takes it."""
    given = annotation.get("iscrowd")
    if given not in (None, 0, 1):
        raise ValueError(f"{file}: iscrowd of annotation {annotation['id']} must be 0 or 1, not {given!r}")
    return int(given or 0)


def box_problem(box: list[float], size: tuple[int, int]) -> str:
    """What is wrong with a box, [left, top, width, height], in an image of (H, W)."""
    if not _numbers(box) or len(box) != 4:
        return "should be four numbers: left, top, width, height"
    left, top, width, height = box
    if width <= 0 or height <= 0:
        return "has no area: width and height must be greater than 0"
    if left < -OUTSIDE or top < -OUTSIDE or left + width > size[1] + OUTSIDE or top + height > size[0] + OUTSIDE:
        return f"leaves its image, which is {size[1]} wide and {size[0]} high"
    if left + width <= 0 or top + height <= 0 or left >= size[1] or top >= size[0]:
        return f"lies outside of its image, which is {size[1]} wide and {size[0]} high"
    return ""


def _mask_problem(segmentation: Any, size: tuple[int, int]) -> str:
    if not segmentation:
        return "is missing: give a segmentation, polygons or run lengths"
    if isinstance(segmentation, list):
        good = all(_numbers(polygon) and len(polygon) >= 6 and len(polygon) % 2 == 0 for polygon in segmentation)
        return "" if good else "has a polygon that is not a list of three points or more, x and y of each"
    if not isinstance(segmentation, dict) or not {"size", "counts"} <= segmentation.keys():
        return "is neither a list of polygons nor run lengths with size and counts"
    given, counts = segmentation["size"], segmentation["counts"]
    if given != list(size):
        return f"has size {given}, but its image {list(size)} (height, width)"
    runs = _runs(counts) if isinstance(counts, str) else counts
    if not isinstance(runs, list) or {*map(type, runs)} != {int} or min(runs) < 0:
        return f"has counts that are neither a list of whole numbers nor COCO's compressed text: {str(counts)[:40]!r}"
    if sum(runs) != size[0] * size[1]:
        return f"has counts that do not add up to the {size[0] * size[1]} pixels of its image"
    return ""


def _runs(text: str) -> list[int] | None:
    """The run lengths in COCO's compressed text, None where it is malformed. A character holds six bits: five of a
    number, the lowest first, and whether it goes on. From the fourth number on, each is added to the length two before.
    """
    runs: list[int] = []
    number, bits = 0, 0
    for code in text.encode():
        if not 0 <= code - ord("0") < 64:
            return None
        part = code - ord("0")
        number |= (part & 31) << bits
        bits += 5
        if not part & 32:
            number -= (part & 16 > 0) << bits  # negative
            runs.append(number + runs[-2] if len(runs) > 2 else number)
            number, bits = 0, 0
    return None if bits else runs


def _numbers(values: Any) -> bool:
    return isinstance(values, list) and {*map(type, values)} <= {int, float} and all(map(math.isfinite, values))


def draw(segmentation: Any, size: tuple[int, int]) -> np.ndarray:
    """The mask of polygons or run lengths, (H, W) uint8."""
    mask = evaluator().mask
    return mask.decode(mask.segmToRle(segmentation, size[1], size[0]))


def encode(masks: Tensor) -> list[Entry]:
    """(T, H, W) of 0 and 1 as run lengths, compressed; text, so that they can be written as JSON."""
    columns = np.asfortranarray(masks.cpu().numpy().astype(np.uint8).transpose(1, 2, 0))
    runs = evaluator().mask.encode(columns) if len(masks) else []
    return [{"size": list(one["size"]), "counts": _text(one["counts"])} for one in runs]


def _text(counts: bytes | str) -> str:
    return counts.decode() if isinstance(counts, bytes) else counts


def evaluator() -> Any:
    """The package that reads and draws masks, and evaluates."""
    try:
        return import_module("faster_coco_eval")
    except ImportError:
        raise ValueError("detection needs COCO's evaluator: pip install faster-coco-eval") from None
