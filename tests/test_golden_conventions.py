"""Mixer and ConvNeXt, for which there is no official code: the formulas of tests/golden/README.md, in numpy alone."""

from collections.abc import Callable

import numpy as np
import pytest
import timm
import torch
from torch.testing import assert_close

import labelflow as lf
from helpers import fill, golden

BOX = (slice(48, 144), slice(64, 192))  # of pixels, as in the golden numbers of Swin
PIXELS = np.ones((224, 224))
PIXELS[BOX] = 0  # the own share of each pixel


def windows(share: np.ndarray, size: int) -> np.ndarray:
    """The mean of each window: (h, w) -> (h / size, w / size)"""
    rows, columns = (side // size for side in share.shape)
    return share.reshape(rows, size, columns, size).mean((1, 3))


def mixer(weights: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The share of every token after each block"""
    layers, share = [], windows(PIXELS, 16).flatten()
    for block in range(8):
        first, second = (
            np.abs(weights[f"blocks.{block}.mlp_tokens.{name}.weight"].astype(np.float64)) for name in ("fc1", "fc2")
        )
        matrix = (second / second.sum(1, keepdims=True)) @ (first / first.sum(1, keepdims=True))
        share = (matrix @ share + share) / 2
        layers.append(share)
    return layers


def convnext(weights: dict[str, np.ndarray]) -> list[np.ndarray]:
    layers, share = [], windows(PIXELS, 4)
    for stage, depth in enumerate((3, 3, 9, 3)):
        share = windows(share, 2) if stage else share
        height, width = share.shape
        for block in range(depth):
            kernel = np.abs(weights[f"stages.{stage}.blocks.{block}.conv_dw.weight"].astype(np.float64))  # (C, 1, 7, 7)
            taken, inside = np.zeros((2, len(kernel), height, width))
            for i in range(height):
                for j in range(width):
                    top, left = i - 3, j - 3  # the window's first place
                    rows = slice(max(-top, 0), min(7, height - top))
                    columns = slice(max(-left, 0), min(7, width - left))
                    part = kernel[:, 0, rows, columns]  # (C, rows inside, columns inside)
                    seen = share[max(top, 0) : top + 7, max(left, 0) : left + 7]
                    taken[:, i, j], inside[:, i, j] = (part * seen).sum((1, 2)), part.sum((1, 2))
            share = ((taken / inside).mean(0) + share) / 2
            layers.append(share.flatten())
    return layers


@pytest.mark.parametrize(("name", "oracle"), [("mixer_s16_224", mixer), ("convnext_tiny", convnext)])
def test_formulas_of_the_golden_conventions(name: str, oracle: Callable) -> None:
    model = fill(timm.create_model(name, num_classes=10)).eval()
    weights = {key: tensor.numpy() for key, tensor in model.state_dict().items()}
    images = torch.from_numpy(golden.paste(golden.images(2, 3, 224, 224), 48, 144, 64, 192))
    share = torch.from_numpy(PIXELS).float().expand(2, 1, -1, -1)
    aligned, expected = lf.Aligned(model), oracle(weights)
    with torch.no_grad():
        trace = aligned.trace(images, share)
        _, arrived = aligned(images, share)
    for layer, tokens in zip(trace, expected, strict=True):
        assert_close(layer.share, torch.from_numpy(tokens).float().expand(2, -1), atol=1e-5, rtol=0)
    assert abs(expected[-1].mean() - PIXELS.mean()) > 5e-4  # Mixer's weights, all alike in size, average much
    assert_close(arrived, torch.full((2,), expected[-1].mean()).float(), atol=1e-5, rtol=0)
