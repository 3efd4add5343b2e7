"""What `labelflow detect` refuses, as a user sees it: one line, exit code 2, and no run left behind."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from labelflow.cli import main

pytest.importorskip("faster_coco_eval")
SWIN = "swin_tiny_patch4_window7_224(embed_dim=16, depths=(1, 1, 1, 1), num_heads=(1, 2, 4, 8), window_size=4)"
VIT = "vit_tiny_patch16_224(patch_size=8, embed_dim=16, depth=4, num_heads=2)"
TINY = ["--backbone", SWIN, "--channels", "8", "--hidden", "16", "--samples", "8", "--proposals", "20", "--sides", "32"]
TINY += [
    "--short-side",
    "32",
    "--workers",
    "0",
    "--epochs",
    "1",
    "--warmup-epochs",
    "0",
    "--batch",
    "2",
    "--micro-batch",
]
TINY += ["2"]


def content() -> dict[str, Any]:
    """Two images of 40 wide and 30 high, with a square each."""
    square = {"category_id": 1, "bbox": [4, 6, 10, 8], "segmentation": [[4, 6, 14, 6, 14, 14, 4, 14]]}
    return {
        "images": [{"id": n, "file_name": f"{n}.png", "height": 30, "width": 40} for n in (1, 2)],
        "annotations": [{"id": n, "image_id": n, **square} for n in (1, 2)],
        "categories": [{"id": 1, "name": "square"}, {"id": 2, "name": "strip"}],
    }


Spoil = Callable[[dict[str, Any]], object]


def box(*sides: float) -> Spoil:
    return lambda told: told["annotations"][1].update(bbox=list(sides))


REFUSED: list[tuple[str, Spoil, list[str], str]] = [
    ("train", box(34, 6, 10, 8), [], "leaves its image, which is 40 wide and 30 high; fix it, or drop such objects"),
    ("val", box(4, 6, 0, 8), [], "has no area: width and height must be greater than 0"),
    ("train", lambda told: told.update(annotations=[]), [], "has no objects to train on"),
    ("val", lambda told: told.update(annotations=[]), [], "has no objects to evaluate on"),
    ("train", lambda told: told.update(images=[], annotations=[]), [], "has no images"),
    ("val", lambda told: told["categories"][1].update(name="stripe"), [], "'strip' and 'stripe' are at the same index"),
    ("val", lambda told: told["categories"].pop(), [], "the evaluation data has different classes: 1 instead of 2"),
    ("train", lambda told: told["categories"][1].update(name="square"), [], "two categories are called 'square'"),
    ("train", lambda told: told["annotations"][0].update(category_id=[1]), [], "category_id [1], which categories"),
    ("train", lambda told: told["images"][0].update(file_name=["1.png"]), [], "file_name of image 1 must be a string"),
    ("train", lambda told: None, ["--backbone", VIT], "needs levels at strides 4, 8, 16 and 32; those of vit_tiny"),
    (
        "train",
        lambda told: None,
        ["--batch", "4", "--micro-batch", "4"],
        "batch of 4 is larger than the 2 training samples",
    ),
    ("train", lambda told: None, ["--channels", "0"], "channels must be at least 1, not 0"),
]


@pytest.mark.parametrize(
    ("split", "spoil", "extra", "message"), REFUSED, ids=[f"{split}: {message}" for split, *_, message in REFUSED]
)
def test_refused(
    split: str, spoil: Spoil, extra: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for part in ("train", "val"):
        (tmp_path / part).mkdir()
        for number in (1, 2):
            Image.new("RGB", (40, 30)).save(tmp_path / part / f"{number}.png")
        told = content()
        if part == split:
            spoil(told)
        (tmp_path / part / "annotations.json").write_text(json.dumps(told))
    out = tmp_path / "run"
    assert main(["detect", "detect_small", "--data", str(tmp_path), "--out", str(out), *TINY, *extra]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("labelflow: ")
    assert message in line
    assert not out.exists()  # the same command, fixed, can begin there
