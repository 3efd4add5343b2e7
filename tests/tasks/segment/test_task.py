"""The loss of a segmenter, pixel by pixel."""

import torch
from torch.testing import assert_close

from labelflow.tasks.segment.task import pixel_loss


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
