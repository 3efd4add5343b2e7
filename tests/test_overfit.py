"""A few real photographs, learned by heart: what is read, trained, evaluated and scored fits together."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from labelflow.engine import Run
from labelflow.recipes import find_any
from labelflow.tasks import train_run

SHARED = Path(__file__).parents[2] / "shared" / "data"
SWIN = "swin_tiny_patch4_window7_224(embed_dim=32, depths=(1, 1, 2, 1), num_heads=(1, 2, 4, 8), window_size=4)"
LEARNED: dict[str, Any] = {"backbone": SWIN, "lr": 2e-3, "clip": 5.0, "drop_path": 0.0, "flip": 0.0, "workers": 0}
LEARNED |= {"warmup_epochs": 0, "warmup_updates": 5}


def photographs(name: str) -> zipfile.ZipFile:
    if not (SHARED / name).exists():
        pytest.skip(f"needs the photographs of {SHARED / name}")
    return zipfile.ZipFile(SHARED / name)


def test_four_pets_are_segmented(tmp_path: Path) -> None:
    names = ["Abyssinian_100", "keeshond_122", "yorkshire_terrier_140", "keeshond_169"]
    with photographs("pets128.zip") as file:
        members = [f"images/{name}.jpg" for name in names] + [f"trimaps/{name}.png" for name in names]
        file.extractall(tmp_path, members)
    for split in ("trainval.txt", "test.txt"):
        (tmp_path / split).write_text("\n".join(names))
    seen = {"crop": 64, "short": 64, "ratio": (1.0, 1.0), "most": 1.0, "photometric": False, "width": 32}
    how = {"epochs": 50, "eval_epochs": 50, "batch": 4, "micro_batch": 4}
    recipe = find_any("segment_small").recipe.change(source=str(tmp_path), **LEARNED, **seen, **how)
    metrics = train_run(recipe, tmp_path / "run", resume=False, quiet=True)
    assert metrics["miou"] > 85
    classes = Run(tmp_path / "run").read("classes.json")
    assert classes.keys() == {"background", "pet"}
    assert sum(own["iou"] for own in classes.values()) / 2 == pytest.approx(metrics["miou"])


def test_a_bear_and_two_birds_are_detected(tmp_path: Path) -> None:
    pytest.importorskip("faster_coco_eval")
    names = {"000000542720.jpg", "000000425988.jpg"}
    with photographs("coco_tiny.zip") as file:
        everything = json.loads(file.read("annotations/instances_train2017.json"))
        file.extractall(tmp_path, [f"train2017/{name}" for name in names])
    images = [one for one in everything["images"] if one["file_name"] in names]
    objects = [one for one in everything["annotations"] if one["image_id"] in {image["id"] for image in images}]
    shown = {one["category_id"] for one in objects}
    categories = [one for one in everything["categories"] if one["id"] in shown]
    assert sorted(one["name"] for one in categories) == ["bear", "bird"]
    content = {"images": images, "annotations": objects, "categories": categories}
    (tmp_path / "instances.json").write_text(json.dumps(content))
    where = {f"{split}_json": "instances.json" for split in ("train", "val")}
    where |= {f"{split}_images": "train2017" for split in ("train", "val")}
    how = {"sides": (96,), "short_side": 96, "epochs": 60, "eval_epochs": 60, "batch": 2, "micro_batch": 2}
    recipe = find_any("detect_small").recipe.change(source=str(tmp_path), **LEARNED, **where, **how)
    metrics = train_run(recipe, tmp_path / "run", resume=False, quiet=True)
    assert metrics["box_ap50"] > 60
    assert metrics["mask_ap50"] > 50
