"""Sparse labels against the dense ones that they stand for."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

import labelflow as lf
from test_golden import golden, load


def random_labels(shape: tuple[int, ...], named: int, num_classes: int, seed: int = 0) -> lf.Sparse:
    """A softmax over scores that are 0 for all but a few classes, some named twice."""
    generator = torch.Generator().manual_seed(seed)
    classes = torch.randint(num_classes, (*shape, named), generator=generator)
    scores = torch.zeros(*shape, num_classes).scatter_add(
        -1, classes, torch.rand(*shape, named, generator=generator) * 6
    )
    full = scores.softmax(-1)
    rest = 1 / scores.exp().sum(-1)
    counts = torch.zeros_like(full).scatter_add(-1, classes, torch.ones(*shape, named))
    above = (full - rest[..., None]).gather(-1, classes) / counts.gather(-1, classes)
    return lf.Sparse(classes, above, rest)


def dense_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return -(labels * logits.log_softmax(-1)).sum(-1)


@settings(deadline=None)
@given(
    shape=st.sampled_from([(1,), (3,), (2, 5), (3, 4)]),
    named=st.integers(1, 12),
    num_classes=st.integers(2, 40),
    smoothing=st.sampled_from([0.0, 0.1, 0.5]),
    seed=st.integers(0, 9),
)
def test_cross_entropy_is_the_dense_one_gradients_too(
    shape: tuple[int, ...], named: int, num_classes: int, smoothing: float, seed: int
) -> None:
    labels = random_labels(shape, named, num_classes, seed)
    full = labels.dense(num_classes)
    assert_close(full.sum(-1), torch.ones(shape))
    assert_close(
        labels.smoothed(smoothing, num_classes).dense(num_classes), (1 - smoothing) * full + smoothing / num_classes
    )
    labels, full = labels.smoothed(smoothing, num_classes), (1 - smoothing) * full + smoothing / num_classes
    logits = 5 * torch.randn(*shape, num_classes, generator=torch.Generator().manual_seed(seed))
    weights = torch.rand(shape, generator=torch.Generator().manual_seed(seed + 1))
    losses, slopes = [], []
    for loss, y in ((lf.sparse_cross_entropy, labels), (dense_cross_entropy, full)):
        own = logits.clone().requires_grad_()
        value = loss(own, y)
        (value * weights).sum().backward()
        losses.append(value.detach())
        slopes.append(own.grad)
    assert_close(losses[0], losses[1], atol=1e-5, rtol=1e-5)
    assert_close(slopes[0], slopes[1], atol=1e-5, rtol=0)


def test_many_classes() -> None:
    """ImageNet-21k's."""
    labels = random_labels((2, 3), 30, 21_841)
    logits = torch.randn(2, 3, 21_841, generator=torch.Generator().manual_seed(0)).requires_grad_()
    expected = dense_cross_entropy(logits, labels.dense(21_841))
    value = lf.sparse_cross_entropy(logits, labels)
    assert_close(value, expected, atol=1e-5, rtol=1e-6)
    (one,) = torch.autograd.grad(value.sum(), logits)
    (other,) = torch.autograd.grad(expected.sum(), logits)
    assert_close(one, other, atol=1e-6, rtol=0)


def test_gradients_by_differences() -> None:
    labels = random_labels((2, 3), 4, 6)
    labels = lf.Sparse(labels.classes, labels.above.double(), labels.rest.double())
    logits = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: lf.sparse_cross_entropy(x, labels), logits)


def test_half_precision_logits_keep_a_float32_loss() -> None:
    labels = random_labels((4, 6), 5, 50)
    logits = (3 * torch.randn(4, 6, 50)).bfloat16().requires_grad_()
    value = lf.sparse_cross_entropy(logits, labels)
    assert value.dtype == torch.float32
    assert_close(value, dense_cross_entropy(logits.float(), labels.dense(50)))
    value.sum().backward()
    assert logits.grad is not None
    assert logits.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("share", [0.0, 1.0, 0.3])
def test_mixed_labels(share: float) -> None:
    labels, partner = random_labels((4, 6), 5, 50), torch.tensor([3, 2, 1, 0])
    shares = torch.full((4, 6), share)
    expected = share * labels.dense(50) + (1 - share) * labels.dense(50)[partner]
    assert_close(labels.mixed(partner, shares).dense(50), expected)


def test_labels_of_other_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="not of the same tokens"):
        lf.sparse_cross_entropy(torch.randn(2, 5, 10), random_labels((2, 4), 3, 10))


def test_classes_may_be_those_of_a_whole_image() -> None:
    """Classes (B, 1, V) stand for the same ones in each token, wherever labels are used."""
    each = random_labels((4, 6), 5, 50)
    classes, partner, share = each.classes[:, :1], torch.tensor([3, 2, 1, 0]), torch.rand(4, 6)
    one, other = lf.Sparse(classes, *each[1:]), lf.Sparse(classes.expand(4, 6, 5), *each[1:])
    assert_close(one.dense(50), other.dense(50))
    assert_close(one.smoothed(0.1, 50).dense(50), other.smoothed(0.1, 50).dense(50))
    one, other = one.mixed(partner, share), other.mixed(partner, share)
    assert_close(one.dense(50), other.dense(50))
    gradients = []
    for labels in (one, other):
        logits = torch.randn(4, 6, 50, generator=torch.Generator().manual_seed(0)).requires_grad_()
        lf.sparse_cross_entropy(logits, labels).sum().backward()
        gradients.append(logits.grad)
    assert_close(*gradients)


@pytest.mark.parametrize("weight", ["0.5", "1"])
def test_losses_and_gradients_of_the_public_program(weight: str) -> None:
    """Class term mixed by λ, token terms as they are: its model un-mixes the tokens' logits."""
    facts, arrays = load("tokenlabel_loss")
    cls, aux, targets = (torch.from_numpy(part) for part in golden.token_loss_inputs())
    cls.requires_grad_()
    aux.requires_grad_()
    partner = torch.arange(4).flip(0)

    def sparse(target: Tensor) -> lf.Sparse:  # (..., C)
        rest = target.min(-1, keepdim=True).values
        return lf.Sparse(torch.arange(10).expand(target.shape), target - rest, rest[..., 0])

    image = sparse(targets[:, :, 1]).mixed(partner, torch.full((4,), facts["lam_own"]))
    assert_close(image.dense(10), arrays["target_cls_mixed"])
    tokens = lf.sparse_cross_entropy(aux, sparse(targets[:, :, 2:].transpose(1, 2)))
    terms = [
        lf.Term("class", lf.sparse_cross_entropy(cls, image).mean()),
        lf.Term("tokens", tokens.mean(), float(weight)),
    ]
    loss = lf.total(terms)
    loss.backward()
    assert_close(loss.item(), facts["results"][f"cls1_dense{weight}"]["loss"], atol=1e-5, rtol=0)
    assert_close(cls.grad, arrays[f"grad_cls_dense{weight}"], atol=1e-6, rtol=0)
    assert_close(aux.grad, arrays[f"grad_aux_dense{weight}"], atol=1e-6, rtol=0)
