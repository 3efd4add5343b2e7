"""RecursiveMix's loss against a loop written from its definition."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

import labelflow as lf
from labelflow.align import Output
from labelflow.targets import RecursiveMixTarget, Truth


def bilinear(tokens: Tensor, y: float, x: float) -> Tensor:
    """Of a map (h, w, C), whose values lie at whole numbers; beyond its edges, that of the edge."""
    height, width, _ = tokens.shape
    y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
    top, left = int(y), int(x)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    upper = (1 - (x - left)) * tokens[top, left] + (x - left) * tokens[top, right]
    lower = (1 - (x - left)) * tokens[bottom, left] + (x - left) * tokens[bottom, right]
    return (1 - (y - top)) * upper + (y - top) * lower


def roi(tokens: Tensor, top: float, left: float, bottom: float, right: float) -> Tensor:
    """RoIAlign, one cell: the mean over ⌈height⌉×⌈width⌉ points in the middles of as many parts of the box. Places are
    in tokens; the middle of the first one lies at ½."""
    rows, columns = math.ceil(bottom - top), math.ceil(right - left)
    points = [
        bilinear(
            tokens,
            top + (i + 0.5) * (bottom - top) / rows - 0.5,
            left + (j + 0.5) * (right - left) / columns - 0.5,
        )
        for i in range(rows)
        for j in range(columns)
    ]
    return torch.stack(points).mean(0)


def test_both_terms() -> None:
    """ω·(1-λ)·cross-entropy of the box with what was said of the earlier image; ω = 0.5 for ImageNet."""
    chance = torch.Generator().manual_seed(1)
    batch, classes, grid, size = 3, 5, (4, 6), (32, 48)
    images = torch.rand(batch, 3, *size, generator=chance)
    mix = lf.RecursiveMix(per="sample")(images, chance, earlier=images)
    assert mix.box is not None
    labels = torch.rand(2 * batch, classes, generator=chance).softmax(1)
    logits = torch.randn(batch, classes, generator=chance)
    tokens = torch.randn(batch, grid[0] * grid[1], classes, generator=chance)
    before = torch.randn(batch, classes, generator=chance)
    terms = RecursiveMixTarget()(Output(logits, tokens), Truth(labels, earlier=before), mix)
    image, consistency = [], []
    for i, (top, left, bottom, right) in enumerate(mix.box.tolist()):
        part = (bottom - top) * (right - left) / (size[0] * size[1])
        image.append(F.cross_entropy(logits[i], (1 - part) * labels[i] + part * labels[batch + i]))
        seen = roi(tokens[i].reshape(*grid, classes), top / 8, left / 8, bottom / 8, right / 8)
        consistency.append(part * F.cross_entropy(seen, before[i].softmax(0)))
    assert [term.name for term in terms] == ["class", "consistency"]
    assert [term.weight for term in terms] == [1.0, 0.5]
    assert_close(terms[0].value, torch.stack(image).mean())
    assert_close(terms[1].value, torch.stack(consistency).mean())


@pytest.mark.parametrize("mixer", [lf.CutMix(), lf.RecursiveMix(), lf.ResizeMix()])
def test_without_an_earlier_batch_the_first_term_counts(mixer: lf.mixers.Mixer) -> None:
    tokens = torch.randn(2, 16, 5, requires_grad=True)
    mix = mixer(torch.rand(2, 3, 32, 32), torch.Generator().manual_seed(0))
    terms = RecursiveMixTarget()(Output(torch.randn(2, 5), tokens), Truth(torch.eye(2, 5)), mix)
    assert terms[1].value.detach() == 0
    lf.total(terms).backward()
    assert tokens.grad is not None  # so that every process knows of the head


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(ValueError, match="omega, a weight"):
        RecursiveMixTarget(omega=-1)
