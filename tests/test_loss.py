"""Terms, their sum, and soft labels."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import labelflow as lf


def test_total_is_the_weighted_sum_and_carries_gradients() -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    lf.total([lf.Term("class", x[0]), lf.Term("tokens", x[1], weight=0.5)]).backward()
    assert_close(x.grad, torch.tensor([1.0, 0.5]))
    with pytest.raises(ValueError, match="at least one term"):
        lf.total([])


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_soft_labels_smooth_as_torch_does(smoothing: float) -> None:
    logits, y = torch.randn(6, 10), torch.randint(0, 10, (6,))
    expected = F.cross_entropy(logits, y, label_smoothing=smoothing)
    assert_close(F.cross_entropy(logits, lf.soft_labels(y, 10, smoothing)), expected)


def test_soft_labels_take_multi_label_targets() -> None:
    targets = torch.tensor([[1, 1, 0, 0]])
    assert_close(lf.soft_labels(targets, 4, 0.2), torch.tensor([[0.85, 0.85, 0.05, 0.05]]))


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"smoothing must lie in \[0, 1\), not 1\.0"):
        lf.soft_labels(torch.tensor([1]), 3, 1.0)
    with pytest.raises(ValueError, match="whole numbers"):
        lf.soft_labels(torch.tensor([1.7, 2.0]), 4)
    with pytest.raises(ValueError, match=r"targets \(B, 4\), not \(2, 3\)"):
        lf.soft_labels(torch.ones(2, 3), 4)
