"""Terms, their sum, soft labels, and what compares logits with them."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from timm.loss import AsymmetricLossMultiLabel, BinaryCrossEntropy
from torch import Tensor
from torch.testing import assert_close

import labelflow as lf
from labelflow.loss import LOSSES


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


def naive(name: str, logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Class by class, from the definitions; float64."""
    z, p = logits.double(), logits.double().sigmoid()
    total = torch.zeros(logits.shape[:-1], dtype=torch.double)
    for c in range(logits.shape[-1]):
        y, there, absent = labels[..., c].double(), p[..., c], torch.zeros(())
        if name == "ce":
            present = -(z[..., c].exp() / z.exp().sum(-1)).log()
        elif name == "bce":
            present, absent = -there.log() / logits.shape[-1], -(1 - there).log() / logits.shape[-1]
        else:
            shifted = (there - 0.05).clamp(min=0)
            present, absent = -(1 - there) * there.log(), -(shifted**4) * (1 - shifted).log()
        total = total + weights[c].double() * y * present + (1 - y) * absent
    return total


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["ce", "bce", "asl"])
@given(st.integers(0, 10**6))
def test_losses_are_their_definitions_for_dense_and_sparse_labels(name: str, weighted: bool, seed: int) -> None:
    chance = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(2, 5, 7, generator=chance)
    classes = torch.randint(0, 7, (2, 1, 3), generator=chance)
    above, rest = torch.rand(2, 5, 3, generator=chance) / 4, torch.rand(2, 5, generator=chance) / 4
    labels = lf.Sparse(classes, above, rest)
    weights = torch.rand(7, generator=chance) + 0.5 if weighted else None
    loss = lf.make_loss(name, weights)
    expected = naive(name, logits, labels.dense(7), torch.ones(7) if weights is None else weights).float()
    assert_close(loss(logits, labels), expected, atol=1e-5, rtol=1e-4)
    assert_close(loss(logits, labels.dense(7)), expected, atol=1e-5, rtol=1e-4)


def test_losses_are_timm_s() -> None:
    logits, y = torch.randn(6, 10), (torch.rand(6, 10) > 0.7).float()
    assert_close(lf.make_loss("asl")(logits, y).mean(), AsymmetricLossMultiLabel()(logits, y))
    single = torch.randint(0, 10, (6,))
    soft = lf.soft_labels(single, 10, 0.1)
    assert_close(lf.make_loss("bce")(logits, soft).mean(), BinaryCrossEntropy(smoothing=0.1)(logits, single))
    summed = lf.make_loss("bce(sum_classes=True, threshold=0.2)")(logits, soft).mean()
    assert_close(summed, BinaryCrossEntropy(0.0, target_threshold=0.2, sum_classes=True)(logits, soft))
    weights = torch.rand(10)
    assert_close(lf.make_loss("ce", weights)(logits, soft).mean(), F.cross_entropy(logits, soft, weight=weights))
    weighted = F.binary_cross_entropy_with_logits(logits, y, pos_weight=weights)
    assert_close(lf.make_loss("bce", weights)(logits, y).mean(), weighted)


def test_a_mixed_label_s_parts_count_by_their_own_weights() -> None:
    logits, weights, share = torch.randn(1, 3), torch.tensor([5.0, 0.2, 1.0]), 0.7
    loss = lf.make_loss("ce", weights)
    own, partner = torch.tensor([[1.0, 0, 0]]), torch.tensor([[0, 1.0, 0]])
    separately = share * 5.0 * lf.Loss()(logits, own) + (1 - share) * 0.2 * lf.Loss()(logits, partner)
    assert_close(loss(logits, share * own + (1 - share) * partner), separately)


@pytest.mark.parametrize("labels", [torch.tensor([[0.3, 0.7, 0.0]]), torch.tensor([[0.9, 0.1, 0.0]])])
def test_a_threshold_of_0_leaves_nothing_of_shares(labels: Tensor) -> None:
    logits = torch.tensor([[0.5, -1.0, 2.0]])
    both = F.binary_cross_entropy_with_logits(logits, torch.tensor([[1.0, 1.0, 0.0]]))
    assert_close(lf.make_loss("bce(threshold=0)")(logits, labels).mean(), both)


def test_logit_adjustment_adds_the_prior_to_tokens_too() -> None:
    logits, prior = torch.randn(2, 4, 3), torch.tensor([0.7, 0.2, 0.1]).log()
    labels = lf.Sparse(torch.tensor([[[0]], [[2]]]), torch.full((2, 4, 1), 0.4), torch.full((2, 4), 0.2))
    expected = lf.Loss()(logits + prior, labels.dense(3))
    assert_close(lf.make_loss("ce", log_prior=prior)(logits, labels), expected)
    with pytest.raises(ValueError, match="--loss ce, not bce"):
        lf.make_loss("bce", log_prior=prior)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_gradients_stay_finite_at_extreme_logits(name: str) -> None:
    logits = torch.tensor([[80.0, -80.0, 0.0]], requires_grad=True)
    lf.make_loss(name)(logits, torch.tensor([[0.0, 1.0, 0.5]])).sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bec", "did you mean bce"),
        ("bce(threshold=1)", r"must lie in \[0, 1\), not 1"),
        ("asl(gamma_neg=-1)", "gamma_neg and gamma_pos must be ≥ 0"),
        ("asl(gama=1)", "its settings are: gamma_neg, gamma_pos, clip"),
    ],
)
def test_bad_losses(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        lf.make_loss(text)
