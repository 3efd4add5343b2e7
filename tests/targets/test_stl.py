"""Self-emerging token labels against their definition, done densely."""

import pytest
import torch
from torch import Generator, Tensor
from torch.testing import assert_close

import labelflow as lf
from helpers import build, images_for
from labelflow.loss import make_loss
from labelflow.targets import STL, STLLabeler, Truth
from labelflow.targets.stl import draw
from targets.test_token_label import blend, cross_entropy, token_shares

C = 5
MIXERS = [lf.CutMix(per="sample"), lf.MixUp(0.8), lf.MixToken(patch=8), lf.NoMix()]


def seeded(seed: int = 4) -> Generator:
    return Generator().manual_seed(seed)


def classes() -> Tensor:
    return lf.soft_labels(torch.arange(4) % C, C, smoothing=0.1)


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("family", ["vit", "lvvit", "swin"])
def test_the_labeller_s_tokens_agree_on_the_image_s_class(family: str, mixer: object) -> None:
    """CE(class, y) + 1·CE(mean over tokens of their logits, y), the same mixed y."""
    model, images = build(family), images_for(family)
    if family == "swin" and isinstance(mixer, lf.MixToken):
        mixer = lf.MixToken(patch=4)
    target = STLLabeler()
    mix = mixer(images, seeded())
    output = target.student(model)(mix.apply(images), mix)
    y = blend(classes(), mix.lam, mix.partner)
    expected = cross_entropy(output.logits, y).mean() + 1 * cross_entropy(output.tokens.mean(1), y).mean()
    assert_close(lf.total(target(output, Truth(classes()), mix)), expected)
    single = sum(cross_entropy(output.tokens[:, place], y).mean() for place in range(output.tokens.shape[1]))
    assert not torch.isclose(expected, cross_entropy(output.logits, y).mean() + single / output.tokens.shape[1])


@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize("labels", ["drawn", "soft", "likeliest"])
@pytest.mark.parametrize("mixer", MIXERS)
def test_each_token_learns_its_own_label(mixer: object, labels: str, mixed: bool) -> None:
    """CE(class, y) + β·mean over tokens of CE(token, (1-.1)·label + .1/C), blended place by place, or not at all."""
    model, images, z = build("vit"), images_for("vit"), 3 * torch.randn(4, 16, C, generator=seeded())
    target = STL(beta=0.7, labels=labels, mixed=mixed)
    given = target.token_labels(z, seeded(9))
    mix = mixer(images, seeded())
    output = target.student(model)(mix.apply(images), mix)
    hard = draw(z, seeded(9)) if labels == "drawn" else z.argmax(-1)
    expected = z.softmax(-1) if labels == "soft" else torch.eye(C)[hard]
    assert_close(given.dense(C), expected)
    expected = 0.9 * expected + 0.1 / C
    if mixed:
        expected = blend(expected, token_shares(mix, (4, 4)), mix.partner)
    loss = cross_entropy(output.logits, blend(classes(), mix.lam, mix.partner)).mean()
    loss = loss + 0.7 * cross_entropy(output.tokens, expected).mean()
    truth = Truth(classes(), tokens=given.smoothed(0.1, C))
    assert_close(lf.total(target(output, truth, mix)), loss)


def test_beta_is_1() -> None:
    assert STLLabeler().beta == STL().beta == 1
    assert (STL().labels, STL().mixed) == ("drawn", True)


def test_drawn_labels_follow_the_softmax() -> None:
    z = torch.tensor([[2.0, 0.0, 1.0, -1.0, -20.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    drawn = draw(z.repeat(4000, 1, 1), seeded())
    for token in range(2):
        found = torch.bincount(drawn[:, token], minlength=C) / 4000
        assert_close(found, z[token].softmax(0), atol=0.03, rtol=0)  # 3.8 standard errors
    pairs = torch.bincount(drawn[:, 0] * C + drawn[:, 1], minlength=C * C) / 4000
    assert_close(pairs.view(C, C), z[0].softmax(0)[:, None] * z[1].softmax(0), atol=0.03, rtol=0)  # independent


def test_a_labeller_that_is_certain_is_followed() -> None:
    z = 200 * torch.eye(C)[torch.arange(20).view(4, 5) % C]
    for labels in ("drawn", "soft", "likeliest"):
        assert_close(STL(labels=labels).token_labels(z, seeded()).dense(C), z / 200)
    impossible = torch.full((64, 16, C), -torch.inf).index_fill(2, torch.tensor([1, 3]), 0.0)
    assert set(draw(impossible, seeded()).unique().tolist()) == {1, 3}


def test_a_draw_is_its_generator_s_and_no_one_else_s() -> None:
    z = torch.randn(4, 16, C, generator=seeded())
    state = torch.get_rng_state()
    assert torch.equal(draw(z, seeded(1)), draw(z, seeded(1)))
    assert not torch.equal(draw(z, seeded(1)), draw(z, seeded(2)))
    assert torch.equal(torch.get_rng_state(), state)


def test_the_loss_of_the_recipe_compares() -> None:
    model, images = build("vit"), images_for("vit")
    target, mix = STLLabeler(), lf.NoMix()(images)
    output = target.student(model)(images, mix)
    loss = make_loss("bce")
    expected = loss(output.logits, classes()).mean() + loss(output.tokens.mean(1), classes()).mean()
    assert_close(lf.total(target(output, Truth(classes(), loss=loss), mix)), expected)


@pytest.mark.parametrize("wrong", [lambda: STL(labels="argmax"), lambda: STL(beta=-1), lambda: STLLabeler(beta=-0.5)])
def test_wrong_settings_are_told(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"must be 'drawn', 'soft' or 'likeliest'|must not be negative"):
        wrong()
