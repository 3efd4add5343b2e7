"""The loss of a segmenter, pixel by pixel, and what is said when it starts."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from labelflow.recipes import find_any
from labelflow.tasks.segment.task import Segmentation, pixel_loss

VIT = "vit_tiny_patch16_224(patch_size=8, embed_dim=16, depth=4, num_heads=2)"


def test_the_loss_is_the_mean_over_pixels_that_count() -> None:
    logits, masks = torch.randn(2, 4, 3, 5), torch.randint(0, 4, (2, 3, 5))
    masks[0, :2] = masks[1, 2, 3:] = 255
    losses = [
        -logits[image, :, row, column].log_softmax(0)[masks[image, row, column]]
        for image, row, column in (masks != 255).nonzero().tolist()
    ]
    assert len(losses) == 30 - 12
    assert_close(pixel_loss(logits, masks), torch.stack(losses).mean())
    assert pixel_loss(logits.bfloat16(), masks).dtype == torch.float32


def test_masks_that_do_not_count_teach_nothing() -> None:
    logits = torch.randn(1, 4, 3, 5, requires_grad=True)
    loss = pixel_loss(logits, torch.full((1, 3, 5), 255))
    loss.backward()
    assert loss == 0
    assert (logits.grad == 0).all()


@pytest.mark.parametrize(("names", "lines"), [("sky\ntree", []), ("sky\ntree\nroad\nrail", ["shows: road, rail"])])
def test_classes_that_no_mask_shows_are_told(names: str, lines: list[str], tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text(names)
    for part in ("images", "masks"):
        (tmp_path / part).mkdir()
        for number in range(4):
            ids = np.arange(32 * 32).reshape(32, 32) % 2
            Image.fromarray(ids.astype(np.uint8)).save(tmp_path / part / f"{number}.png")
    small = {"backbone": VIT, "width": 8, "crop": 32, "short": 32, "workers": 0, "batch": 2, "micro_batch": 2}
    recipe = find_any("segment_small").recipe.change(source=str(tmp_path), **small)
    told: list[str] = []
    Segmentation(recipe, told.append)
    assert [line.removeprefix("classes that no mask to train on ") for line in told] == lines
    Segmentation(recipe, told.append, training=False)
    assert len(told) == len(lines)
