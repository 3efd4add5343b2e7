"""COCO's format and the sample world: what is read, what is refused, and how training sees it."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.testing import assert_close
from torchvision.transforms.functional import to_tensor

from labelflow.chance import generator
from labelflow.data.changes import DataFiles
from labelflow.tasks.detect.coco import encode
from labelflow.tasks.detect.data import Packed, Sample, open_source
from labelflow.tasks.detect.metrics import as_results, scores_and_classes
from labelflow.tasks.detect.settings import DetectData
from labelflow.tasks.detect.views import crop, eval_batches, flip, resize, train_batches, train_view

pytest.importorskip("faster_coco_eval")
SMALL: dict[str, Any] = {"sides": (24, 32), "longest": 48, "crop_sides": (30,), "crop_range": (16, 28), "workers": 0}


def content() -> dict[str, Any]:
    """Four images of 40 wide and 30 high: polygons, run lengths, a crowd alone, nothing."""
    images = [{"id": 10 * n, "file_name": f"{n}.png", "height": 30, "width": 40} for n in (1, 2, 3, 4)]
    square = {"category_id": 90, "bbox": [4, 6, 10, 8], "segmentation": [[4, 6, 14, 6, 14, 14, 4, 14]], "iscrowd": 0}
    runs = {"size": [30, 40], "counts": [30 * 20 + 5, 10, 20, 10, 30 * 18 + 15]}  # columns 20 and 21, rows 5 to 14
    strip = {"category_id": 7, "bbox": [20, 5, 2, 10], "segmentation": runs}
    crowd = {**strip, "iscrowd": 1}
    owned = [(10, square), (10, strip), (20, strip), (20, crowd), (30, crowd)]
    annotations = [{"id": number, "image_id": image, **one} for number, (image, one) in enumerate(owned, 1)]
    categories = [{"id": 90, "name": "square"}, {"id": 7, "name": "strip"}]
    return {"images": images, "annotations": annotations, "categories": categories}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for split in ("train2017", "val2017"):
        (tmp_path / split).mkdir()
        for number in (1, 2, 3, 4):
            Image.new("RGB", (40, 30), (10 * number, 0, 0)).save(tmp_path / split / f"{number}.png")
    (tmp_path / "annotations").mkdir()
    for split in ("train2017", "val2017"):
        (tmp_path / f"annotations/instances_{split}.json").write_text(json.dumps(content()))
        (tmp_path / f"annotations/captions_{split}.json").write_text("{}")
    return tmp_path


def test_coco_is_read(folder: Path) -> None:
    data = DetectData(source=str(folder))
    train, val = open_source(data, "train"), open_source(data, "val")
    assert (train.classes, train.categories) == (["strip", "square"], [7, 90])
    assert (len(train), len(val)) == (2, 4)  # a crowd alone is nothing to train on, and neither is nothing
    assert len(open_source(DetectData(source=str(folder), keep_empty=True), "train")) == 4
    sample = train.load(0)
    assert_close(sample.boxes, torch.tensor([[4.0, 6, 14, 14], [20, 5, 22, 15]]))
    assert (sample.labels.tolist(), sample.number) == ([1, 0], 10)
    for mask, (left, top, right, bottom) in zip(sample.masks, sample.boxes.int().tolist(), strict=True):
        expected = torch.zeros(30, 40, dtype=torch.uint8)
        expected[top:bottom, left:right] = 1
        assert torch.equal(mask, expected)
    assert len(train.load(1).boxes) == 1  # beside a crowd
    empty = val.load(3)
    assert (empty.boxes.shape, empty.labels.shape, empty.masks.shape) == ((0, 4), (0,), (0, 30, 40))
    told = val.truth()["annotations"]
    assert (len(told), told[0]["area"], told[1]["area"], told[1]["iscrowd"]) == (5, 80, 20, 0)


def test_other_names_are_found_or_asked_for(folder: Path) -> None:
    annotations = folder / "annotations/instances_train2017.json"
    (folder / "annotations/instances_train_more.json").write_text(annotations.read_text())
    with pytest.raises(ValueError, match=r"several annotation files for 'train'.*--train-json"):
        open_source(DetectData(source=str(folder)), "train")
    given = DetectData(source=str(folder), train_json="annotations/instances_train_more.json")
    with pytest.raises(ValueError, match=r"1\.png, an image of .*--train-images"):
        open_source(given, "train")
    given = DetectData(source=str(folder), train_json=str(annotations), train_images="val2017")
    assert Path(open_source(given, "train").name(0)) == folder / "val2017/1.png"
    (folder / "train2017").rename(folder / "train")
    (folder / "train/_annotations.coco.json").write_text(json.dumps(content()))
    for path in (folder / "annotations").glob("*train*"):
        path.unlink()
    assert len(open_source(DetectData(source=str(folder)), "train")) == 2


Spoil = Callable[[dict[str, Any]], object]
REFUSED: list[tuple[str, Spoil]] = [
    (r"box of annotation 1, \[4, 6, 0, 8\], has no area", lambda c: c["annotations"][0].update(bbox=[4, 6, 0, 8])),
    ("leaves its image, which is 40 wide and 30 high", lambda c: c["annotations"][0].update(bbox=[34, 6, 10, 8])),
    ("leaves its image", lambda c: c["annotations"][0].update(bbox=[-5, 6, 10, 8])),
    ("four numbers", lambda c: c["annotations"][0].update(bbox=[4, 6, float("nan"), 8])),
    ("category_id 8, which categories lacks", lambda c: c["annotations"][0].update(category_id=8)),
    ("image_id 8, which images lacks", lambda c: c["annotations"][0].update(image_id=8)),
    ("mask of annotation 1 is missing", lambda c: c["annotations"][0].pop("segmentation")),
    ("three points", lambda c: c["annotations"][0].update(segmentation=[[1, 2, 3, 4]])),
    (
        r"has size \[40, 30\], but its image \[30, 40\]",
        lambda c: c["annotations"][1]["segmentation"].update(size=[40, 30]),
    ),
    (
        "counts that do not add up to the 1200 pixels of its image",
        lambda c: c["annotations"][1]["segmentation"].update(counts=[600, 10, 20, 10, 561]),
    ),
    ("neither a list of whole numbers", lambda c: c["annotations"][1]["segmentation"].update(counts=[600.5, 599.5])),
    ("neither a list of whole numbers", lambda c: c["annotations"][1]["segmentation"].update(counts=[1201, -1])),
    ("neither a list of whole numbers", lambda c: c["annotations"][1]["segmentation"].update(counts=[])),
    ("compressed text: 'None'", lambda c: c["annotations"][1]["segmentation"].update(counts=None)),
    ("compressed text: '`U1P'", lambda c: c["annotations"][1]["segmentation"].update(counts="`U1P")),  # `U1 is 1200
    ("compressed text: 'p`U1'", lambda c: c["annotations"][1]["segmentation"].update(counts="p`U1")),
    ("compressed text: ''", lambda c: c["annotations"][1]["segmentation"].update(counts="")),
    (r"mask of annotation 2 .*text: 'zz!!'", lambda c: c["annotations"][1]["segmentation"].update(counts="zz!!")),
    (
        r"instances_train2017.json: iscrowd of annotation 1 .* not '0'",
        lambda c: c["annotations"][0].update(iscrowd="0"),
    ),
    ("iscrowd of annotation 4 must be 0 or 1, not 2", lambda c: c["annotations"][3].update(iscrowd=2)),
    (r"iscrowd of annotation 1 must be 0 or 1, not \[\]", lambda c: c["annotations"][0].update(iscrowd=[])),
    (r"category_id \[90\], which categories lacks", lambda c: c["annotations"][0].update(category_id=[90])),
    (r"image_id \['10'\], which images lacks", lambda c: c["annotations"][0].update(image_id=["10"])),
    (r"one of categories is \[7\]", lambda c: c["categories"][1].update(id=[7])),
    ("one of images is '10'", lambda c: c["images"][0].update(id="10")),
    ("two categories are called 'strip'", lambda c: c["categories"][0].update(name="strip")),
    ("file_name of image 10 must be a string, not 1", lambda c: c["images"][0].update(file_name=1)),
    (
        r"height and width of image 10 must be numbers.*not \('30', 40\)",
        lambda c: c["images"][0].update(height="30"),
    ),
    (
        r"height and width of image 10 must be numbers.*not \(30, 0\)",
        lambda c: c["images"][0].update(width=0),
    ),
    ("two of images have the same id", lambda c: c["images"][0].update(id=20)),
    ("each of images needs id, file_name", lambda c: c["images"][0].pop("height")),
    ("four numbers", lambda c: c["annotations"][0].update(bbox=["4", "6", "10", "8"])),
    ("three points", lambda c: c["annotations"][0].update(segmentation=[4, 6, 14, 6, 14, 14])),
    ("neither a list of polygons nor run lengths", lambda c: c["annotations"][1]["segmentation"].pop("counts")),
    ("no objects to train on", lambda c: c.update(annotations=[])),
    ("each of annotations needs id, image_id", lambda c: c.update(annotations=[1])),
    ("it has no annotations", lambda c: c.update(annotations={"1": {}})),
    ("it has no categories", lambda c: c.pop("categories")),
    ("lacks images of .*: 7.png", lambda c: c["images"][1].update(file_name="7.png")),
]


@pytest.mark.parametrize(("message", "spoil"), REFUSED)
def test_what_is_wrong_is_refused_at_once(folder: Path, message: str, spoil: Spoil) -> None:
    spoilt = content()
    spoil(spoilt)
    (folder / "annotations/instances_train2017.json").write_text(json.dumps(spoilt))
    with pytest.raises(ValueError, match=message):
        open_source(DetectData(source=str(folder)), "train")


def test_there_must_be_something_to_evaluate_on(folder: Path) -> None:
    told = content()
    told["annotations"] = [one for one in told["annotations"] if one.get("iscrowd")]
    (folder / "annotations/instances_val2017.json").write_text(json.dumps(told))
    with pytest.raises(ValueError, match=r"no objects to evaluate on \(crowds don't count\)"):
        open_source(DetectData(source=str(folder)), "val")


def test_bad_objects_can_be_dropped_and_rounding_is_no_fault(folder: Path) -> None:
    told = content()
    told["annotations"][0]["bbox"] = [4, 6, 0, 8]
    told["annotations"][1]["bbox"] = [-0.4, 5, 41, 25.5]
    (folder / "annotations/instances_train2017.json").write_text(json.dumps(told))
    source = open_source(DetectData(source=str(folder), bad_objects="drop"), "train")
    assert_close(source.load(0).boxes, torch.tensor([[0.0, 5, 40, 30]]))
    assert source.dropped == 1


BAD: list[tuple[Spoil, str]] = [
    (lambda one: one.update(bbox=[4, 6, 0, 8]), "has no area"),
    (lambda one: one.update(segmentation=[[1, 2, 3, 4]]), "three points"),
    (lambda one: one.pop("segmentation"), "is missing"),
    (lambda one: one.update(segmentation={"size": [40, 30], "counts": [1200]}), "has size"),
    (lambda one: one.update(segmentation={"size": [30, 40], "counts": "zz!!"}), "compressed text"),
]


@pytest.mark.parametrize(("spoil", "problem"), BAD)
def test_what_is_dropped_is_neither_seen_nor_true(folder: Path, spoil: Spoil, problem: str) -> None:
    told = content()
    spoil(told["annotations"][0])
    for split in ("train", "val"):
        (folder / f"annotations/instances_{split}2017.json").write_text(json.dumps(told))
        with pytest.raises(ValueError, match=rf"annotation 1\b.*{problem}.*--bad-objects drop"):
            open_source(DetectData(source=str(folder)), split)
    data = DetectData(source=str(folder), bad_objects="drop")
    train, val = open_source(data, "train"), open_source(data, "val")
    assert (train.dropped, val.dropped) == (1, 1)
    assert train.load(0).labels.tolist() == val.load(0).labels.tolist() == [0]
    assert [(one["image_id"], one["category_id"]) for one in val.truth()["annotations"]] == [
        *((10, 7), (20, 7), (20, 7), (30, 7)),
    ]


@pytest.mark.parametrize(("given", "crowd"), [(None, 0), (0, 0), (False, 0), (1, 1), (True, 1), ("missing", 0)])
def test_crowds_are_told_in_several_ways(folder: Path, given: object, crowd: int) -> None:
    told = content()
    told["annotations"][0]["iscrowd"] = given
    if given == "missing":
        del told["annotations"][0]["iscrowd"]
    (folder / "annotations/instances_val2017.json").write_text(json.dumps(told))
    val = open_source(DetectData(source=str(folder)), "val")
    found = val.truth()["annotations"][0]["iscrowd"]
    assert (type(found), found) == (int, crowd)
    assert val.load(0).labels.tolist() == ([0] if crowd else [1, 0])


def test_average_precision_does_not_depend_on_ids(folder: Path) -> None:
    """The evaluator takes the id 0 for none."""
    file, told = folder / "annotations/instances_val2017.json", []
    for first in (1, 0, -2, 100):
        changed = content()
        for number, one in enumerate(changed["annotations"], first):
            one["id"] = number
        file.write_text(json.dumps(changed))
        val = open_source(DetectData(source=str(folder)), "val")
        results = []
        for index in range(len(val)):
            sample = val.load(index)
            found = {"boxes": sample.boxes, "labels": sample.labels, "masks": sample.masks}
            results += as_results({**found, "scores": torch.ones(len(sample.labels))}, sample.number, val.categories)
        told.append(scores_and_classes(val.truth(), results, [10, 20, 30, 40]))
    assert told[0][0] == pytest.approx(dict.fromkeys(told[0][0], 100))
    assert told[1:] == told[:1] * 3


def test_compressed_runs_are_read_and_cut_ones_refused(folder: Path) -> None:
    masks = torch.rand(8, 30, 40, generator=generator(1)) < torch.linspace(0.01, 1, 8)[:, None, None]
    masks[0, :, :30], masks[1, 3] = False, True  # long runs, and many of one length
    told = content()
    told["annotations"] = [
        {**told["annotations"][0], "id": n, "segmentation": runs} for n, runs in enumerate(encode(masks))
    ]
    file = folder / "annotations/instances_train2017.json"
    file.write_text(json.dumps(told))
    data = DetectData(source=str(folder))
    assert torch.equal(open_source(data, "train").load(0).masks, masks.byte())
    runs = told["annotations"][0]["segmentation"]
    whole = runs["counts"]
    for wrong in (*(whole[:length] for length in range(len(whole))), f"{whole}1", f"{whole[:-1]}é"):
        runs["counts"] = wrong
        file.write_text(json.dumps(told))
        with pytest.raises(ValueError, match="mask of annotation 0 has counts that"):
            open_source(data, "train")


def test_areas_are_drawn_once_and_training_keeps_only_what_it_loads(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = DetectData(source=str(folder))
    val, train = open_source(data, "val"), open_source(data, "train")
    first = [one["area"] for one in val.truth()["annotations"]]
    assert first == [80, 20, 20, 20, 20]
    monkeypatch.setattr("labelflow.tasks.detect.data.draw", None)
    assert [one["area"] for one in val.truth()["annotations"]] == first
    with pytest.raises(ValueError, match="for evaluation only"):
        train.truth()


def test_packed_items_are_as_they_were() -> None:
    items = [{"a": [1.5, None]}, "", (), list(range(1000)), {"size": [3, 4], "counts": "0é"}]
    packed = Packed(iter(items))
    for one in (packed, pickle.loads(pickle.dumps(packed))):  # as a worker gets it
        assert len(one) == 5
        assert [one[index] for index in (3, 1, 4, 0, 2)] == [items[index] for index in (3, 1, 4, 0, 2)]
        assert list(one) == items
        for outside in (-1, 5):
            with pytest.raises(IndexError, match="there are 5 items"):
                one[outside]
    assert packed[0] is not packed[0]  # nothing is kept of what was read
    assert list(Packed([])) == []


def test_an_image_of_another_size_is_told_and_skipped(folder: Path) -> None:
    Image.new("RGB", (41, 30)).save(folder / "val2017/2.png")
    data = DetectData(source=str(folder), workers=0)
    (batch,) = eval_batches(open_source(data, "val"), data, batch=4)
    assert batch.weights == [1, 0, 1, 1]
    assert "has 30×41 pixels" in str(batch.problems[0])


def extent(mask: Tensor) -> list[float]:
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]


def world_sample() -> Sample:
    return open_source(DetectData(source="world(train=4, val=4, size=64)"), "train").load(2)


def test_the_world_tells_boxes_classes_and_masks() -> None:
    source = open_source(DetectData(source="world(train=4, val=4, size=64)"), "val")
    sample = source.load(3)
    assert sample.labels[0] == 3
    assert_close(sample.boxes, torch.tensor([extent(mask) for mask in sample.masks], dtype=torch.float32))
    truth = source.truth()
    assert (len(truth["images"]), len(truth["annotations"]), len(truth["categories"])) == (4, 8, 10)
    assert truth["annotations"][6]["area"] == int(sample.masks[0].sum())


def test_boxes_and_masks_move_with_the_image() -> None:
    sample = world_sample()
    mirrored = flip(sample)
    assert torch.equal(mirrored.image, sample.image.flip(2))
    assert torch.equal(mirrored.boxes[:, 0], 64 - sample.boxes[:, 2])
    assert torch.equal(flip(mirrored).boxes, sample.boxes)
    double = resize(sample, 128, 999)
    assert_close(double.boxes, sample.boxes * 2)
    assert torch.equal(double.masks[:, ::2, 1::2], sample.masks)
    assert resize(sample, 128, 96).image.shape == (3, 96, 96)
    part = crop(sample, (10, 20, 30, 25))
    assert torch.equal(part.image, sample.image[:, 10:40, 20:45])
    for number in range(20):
        seen = train_view(sample, generator(number), DetectData(**SMALL))
        assert min(seen.image.shape[1:]) in (24, 32) or max(seen.image.shape[1:]) == 48
        assert seen.masks.shape == (len(seen.boxes), *seen.image.shape[1:])
        assert len(seen.labels) == len(seen.boxes)
        for box, mask in zip(seen.boxes, seen.masks, strict=True):  # a part of a shape may be narrower than its box
            left, top, right, bottom = (torch.tensor(extent(mask)) - box).tolist()
            assert min(left, top, -right, -bottom) > -1.5
        seen = train_view(sample, generator(number), DetectData(sides=(96, 111), crop_chance=0.0))
        assert_close(seen.boxes, torch.tensor([extent(mask) for mask in seen.masks]).float(), atol=1.0, rtol=0)


def test_a_crop_leaves_out_what_it_does_not_show() -> None:
    masks = torch.zeros(2, 20, 20, dtype=torch.uint8)
    masks[0, 2:6, 2:6], masks[1, 10:18, 10:18] = 1, 1
    boxes = torch.tensor([[2.0, 2, 6, 6], [10, 10, 18, 18]])
    sample = Sample(torch.zeros(3, 20, 20, dtype=torch.uint8), boxes, torch.tensor([5, 6]), masks, 0)
    part = crop(sample, (8, 8, 6, 12))
    assert (part.labels.tolist(), part.boxes.tolist()) == ([6], [[2, 2, 10, 6]])
    assert len(crop(sample, (6, 6, 4, 4)).boxes) == 0
    nothing = train_view(crop(sample, (6, 6, 4, 4)), generator(0), DetectData(**SMALL))
    assert nothing.masks.shape == (0, *nothing.image.shape[1:])


def test_batches_start_anywhere_and_every_image_is_evaluated_once() -> None:
    data = DetectData(source="world(train=5, val=3, size=32)", **SMALL)
    train, val = open_source(data, "train"), open_source(data, "val")
    whole = list(train_batches(train, data, batch=4, micro_batch=2, updates=3, seed=5))
    late = list(train_batches(train, data, batch=4, micro_batch=2, updates=3, seed=5, first_update=2))
    assert_close([batch.images for batch in whole[4:]], [batch.images for batch in late])
    assert_close([batch.targets for batch in whole[4:]], [batch.targets for batch in late])
    images = whole[0].to(torch.device("cpu")).images
    assert_close(images, [to_tensor(image.permute(1, 2, 0).numpy()) for image in whole[0].images], rtol=0, atol=0)
    parts = [batch for rank in (0, 1) for batch in eval_batches(val, data, batch=1, rank=rank, processes=2)]
    counted = [number for batch in parts for number, weight in zip(batch.numbers, batch.weights, strict=True) if weight]
    assert sorted(counted) == [0, 1, 2]
    assert all(len(batch.images) == 1 and batch.targets == [] for batch in parts)  # nothing to pin or move
    assert len(parts) == 4


@pytest.mark.parametrize("changed", ["annotations/instances_train2017.json", "val2017/4.png"])
def test_a_file_that_was_replaced_is_noticed(changed: str, folder: Path) -> None:
    sources = [open_source(DetectData(source=str(folder)), split) for split in ("train", "val")]
    files = DataFiles(folder, sources, resumed=False)
    assert list(files.compare(contents=False)) == []
    files.write()
    (folder / changed).write_bytes((folder / changed).read_bytes() + b" ")
    with pytest.raises(ValueError, match=rf"1 file of another size \(.*{changed}\)"):
        list(DataFiles(folder, sources, resumed=True).compare(contents=False))
