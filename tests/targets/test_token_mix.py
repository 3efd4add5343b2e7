"""TokenMix's labels against a loop over images and tokens."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

import labelflow as lf
from helpers import box_mix, build, images_for
from labelflow.align import Output
from labelflow.sparse import TokenLabels
from labelflow.targets import TARGETS, TokenMixTarget, Truth
from test_sparse import random_labels

C = 5


def truth_for(batch: int, tokens: int, seed: int = 0) -> Truth:
    """Labels over 4 of the 5 classes of each image, other ones for each token."""
    generator = torch.Generator().manual_seed(seed)
    above = torch.rand(batch, tokens, 4, generator=generator) / 5
    dense = TokenLabels(random_labels((batch,), 4, C, seed), above, (1 - above.sum(-1)) / C)
    return Truth(lf.soft_labels(torch.arange(batch) % C, C, smoothing=0.1), dense)


def softplus(x: Tensor) -> Tensor:
    return (1 + x.exp()).log()


def by_hand(logits: Tensor, truth: Truth, mix: lf.Mix, smoothing: float) -> Tensor:
    """Tokens of 8 pixels on a grid 4×4. One-hot labels, each weighted by its part of A; ε/2 spread from each image."""
    dense = truth.dense.tokens.dense(C)  # (B, N, C)
    batch = len(logits)
    loss = torch.zeros(())
    for i in range(batch):
        y = torch.zeros(C)
        for image, is_own in ((i, True), (int(mix.partner[i]), False)):
            true = int(truth.classes[image].argmax())
            weight = 0.0
            for token in range(16):
                row, column = 8 * (token // 4), 8 * (token % 4)
                own = float(mix.share[i, 0, row : row + 8, column : column + 8].mean())
                part = float(dense[image, token, true] / dense[image, :, true].sum())
                weight += part * (own if is_own else 1 - own)
            y[true] += weight * (1 - smoothing)
            y += smoothing / 2 / C
        y = y.clamp(max=1)
        loss += (y * softplus(-logits[i]) + (1 - y) * softplus(logits[i])).sum()
    return loss / (batch * C)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("mixer", [lf.TokenMix(patch=8), lf.CutMix(per="sample"), lf.MixUp(0.8), lf.NoMix()])
def test_the_definition(mixer: lf.mixers.Mixer, smoothing: float) -> None:
    images = torch.randn(5, 3, 32, 32)
    mix = mixer(images, torch.Generator().manual_seed(1))
    classes = torch.tensor([0, 3, 1, 2, 3])
    truth = truth_for(5, 16)._replace(classes=lf.soft_labels(classes, C, smoothing))
    logits = torch.randn(5, C)
    smoothed = truth._replace(dense=truth.dense.smoothed(smoothing, C))  # as training has them; A is what it was
    [term] = TokenMixTarget()(Output(logits), smoothed, mix)
    assert_close(term.value, by_hand(logits, truth, mix, smoothing))


def uniform(batch: int, tokens: int) -> TokenLabels:
    """Every class everywhere alike."""
    image = lf.Sparse(torch.zeros(batch, 1).long(), torch.zeros(batch, 1), torch.full((batch,), 1 / C))
    nothing = torch.zeros(batch, tokens, 1)
    return TokenLabels(image, nothing, torch.full((batch, tokens), 1 / C))


@given(seed=st.integers(0, 2**31), constant=st.booleans())
def test_maps_that_are_uniform_and_shares_that_are_constant_give_the_area(seed: int, constant: bool) -> None:
    """The plain, smoothed label."""
    images = torch.empty(4, 3, 32, 32)
    generator = torch.Generator().manual_seed(seed)
    mix = lf.MixUp()(images, generator) if constant else lf.CutMix(per="sample")(images, generator)
    truth = truth_for(4, 16, seed % 1000)
    truth = truth if constant else truth._replace(dense=uniform(4, 16))
    logits = torch.randn(4, C, generator=generator)
    [term] = TokenMixTarget()(Output(logits), truth, mix)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits, mix.blend(truth.classes))
    assert_close(term.value, expected, atol=1e-5, rtol=1e-5)


def test_an_image_counts_as_much_as_its_object_is_seen() -> None:
    """Both objects are visible: both labels are whole. Both are hidden: none is left."""
    image = lf.Sparse(torch.tensor([[0], [1]]), torch.ones(2, 1), torch.zeros(2))
    above = torch.zeros(2, 16, 1)
    above[0, :2] = 1  # the first image's object is in the first tokens,
    above[1, 8:] = 1  # the second's in the lower half
    truth = Truth(
        lf.soft_labels(torch.tensor([0, 1]), C),
        TokenLabels(image, above, torch.zeros(2, 16)),
    )
    share = torch.ones(2, 1, 32, 32)
    share[:, :, 16:] = 0
    logits = torch.full((2, C), 2.0)
    [term] = TokenMixTarget()(Output(logits), truth, lf.Mix(torch.tensor([1, 0]), share))
    right, wrong = softplus(-logits[0, 0]), softplus(logits[0, 0])
    both, none = 2 * right + (C - 2) * wrong, C * wrong  # the first image shows both, the second neither
    assert_close(term.value, (both + none) / (2 * C))


def test_an_unseen_class_is_everywhere() -> None:
    truth = truth_for(4, 16)
    empty = truth.dense._replace(above=torch.zeros(4, 16, 4), rest=torch.zeros(4, 16))
    mix = box_mix(torch.empty(4, 3, 32, 32))
    values = [
        TokenMixTarget()(Output(torch.ones(4, C)), truth._replace(dense=d), mix)[0].value
        for d in (empty, uniform(4, 16))
    ]
    assert_close(values[0], values[1])


def test_moved_windows_take_their_map_along() -> None:
    """SMMix shows the partner's window elsewhere; what counts is what it shows."""
    truth = truth_for(2, 16)
    importance = torch.rand(2, 4, 4)
    mix = lf.SMMix()(torch.empty(2, 3, 32, 32), importance=importance)
    dense = truth.dense.tokens.dense(C)
    logits = torch.randn(2, C)
    y = torch.zeros(2, C)
    for i in range(2):
        own, other = (dense[j, :, int(truth.classes[j].argmax())] for j in (i, 1 - i))
        inside = mix.tokens((4, 4))[i].flatten() == 0
        places = mix.sources[i, 1].flatten()[inside]
        y[i] += (truth.classes[i] - 0.02) * own[~inside].sum() / own.sum() + 0.01
        y[i] += (truth.classes[1 - i] - 0.02) * other[places].sum() / other.sum() + 0.01
    [term] = TokenMixTarget()(Output(logits), truth._replace(dense=truth.dense.smoothed(0.1, C)), mix)
    assert_close(term.value, torch.nn.functional.binary_cross_entropy_with_logits(logits, y.clamp(max=1)))


def test_a_model_learns() -> None:
    model, images = build("vit"), images_for("vit")
    target = TARGETS["token_mix"]()
    student, mix, truth = target.student(model), lf.TokenMix(patch=8)(images), truth_for(4, 16)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05)
    losses = []
    for _ in range(8):
        loss = lf.total(target(student(mix.apply(images), mix), truth, mix))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("loss", [lf.make_loss("asl"), lf.make_loss("bce"), lf.make_loss("ce", torch.ones(C))])
def test_it_has_a_loss_of_its_own(loss: lf.Loss) -> None:
    mix = box_mix(torch.rand(4, 3, 32, 32))
    with pytest.raises(ValueError, match="token_mix has a loss of its own"):
        TokenMixTarget()(Output(torch.ones(4, C)), truth_for(4, 16)._replace(loss=loss), mix)
