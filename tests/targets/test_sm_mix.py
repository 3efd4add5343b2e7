"""SMMix's loss against its definition, and a step of training with guide, mixer and target together."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import labelflow as lf
from helpers import box_mix, build, images_for
from labelflow.align import Output
from labelflow.guides import UnmixedBatch
from labelflow.mixers import make_mixer, mix_batch
from labelflow.targets import Plain, SMMixTarget, Truth

C = 5
Y = lf.soft_labels(torch.tensor([0, 3, 1, 3]), C, smoothing=0.1)


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    return -(y * logits.log_softmax(-1)).sum(-1)


def shown(family: str = "vit") -> tuple[lf.Student, Tensor, lf.Mix, Truth]:
    model, images = build(family), images_for(family)
    student = SMMixTarget().student(model)
    unmixed = UnmixedBatch(images, Y, student, (0.5,) * 3, (0.5,) * 3)
    mix, guidance = mix_batch(make_mixer("smmix"), unmixed, torch.Generator().manual_seed(1))
    assert guidance is not None
    return student, images, mix, Truth(Y, clean=guidance.logits)


def test_the_three_terms() -> None:
    student, images, mix, truth = shown()
    model = student.model
    output = student(mix.apply(images), mix)
    image, regions, consistency = SMMixTarget()(output, truth, mix)
    assert [term.name for term in (image, regions, consistency)] == ["class", "regions", "consistency"]
    assert {term.weight for term in (image, regions, consistency)} == {1.0}

    lam = mix.lam[0]
    logits, clean = model(mix.apply(images)), model(images)
    assert_close(image.value, cross_entropy(logits, lam * Y + (1 - lam) * Y.flip(0)).mean())
    features = model.forward_features(mix.apply(images))[:, 1:]  # (B, N, D)
    own = mix.share[:, 0, ::8, ::8].flatten(1) == 1  # tokens of 8 pixels, none of them cut
    total = torch.zeros(())
    for i in range(4):
        for region, y in ((own[i], Y[i]), (~own[i], Y[3 - i])):
            total = total + cross_entropy(student.token_head(features[i, region].mean(0)), y) / 2
    assert_close(regions.value, total / 4)
    p = (lam * clean + (1 - lam) * clean.flip(0)).softmax(1)
    q = logits.softmax(1)
    assert_close(consistency.value, (p * (p / q).log()).sum(1).mean())


def test_a_model_is_not_taught_by_its_own_answers_gradient() -> None:
    student, images, mix, truth = shown()
    clean = student.model(images)  # with a gradient
    _, _, consistency = SMMixTarget()(
        Output(torch.randn(4, C), torch.randn(4, 16, C)), truth._replace(clean=clean), mix
    )
    assert not consistency.value.requires_grad


def test_without_the_model_s_answers_only_the_class_counts() -> None:
    """A MixUp batch between SMMix's: the same terms by name, and every parameter has a gradient (DDP waits for it)."""
    target = SMMixTarget()
    model, images = build("vit"), images_for("vit")
    student = target.student(model)
    mix = lf.MixUp()(images)
    output = student(mix.apply(images), mix)
    terms = target(output, Truth(Y), mix)
    assert [term.name for term in terms] == ["class", "regions", "consistency"]
    assert terms[1].value == terms[2].value == 0
    assert_close(lf.total(terms), lf.total(Plain()(output, Truth(Y), mix)))
    lf.total(terms).backward()
    assert all(parameter.grad is not None for parameter in student.parameters())
    assert (student.token_head.weight.grad == 0).all()


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_region_without_tokens_adds_nothing(share: float) -> None:
    tokens, logits = torch.randn(4, 16, C, requires_grad=True), torch.randn(4, C)
    mix = lf.Mix(torch.arange(4).flip(0), torch.full((4, 1, 32, 32), share))
    _, regions, _ = SMMixTarget()(Output(logits, tokens), Truth(Y, clean=logits), mix)
    labels = Y if share else Y.flip(0)
    assert_close(regions.value, cross_entropy(tokens.mean(1), labels).mean() / 2)
    regions.value.backward()
    assert tokens.grad.isfinite().all()


def test_tokens_that_are_cut_count_for_their_part() -> None:
    images = torch.empty(4, 3, 32, 32)
    mix, tokens, logits = box_mix(images), torch.randn(4, 16, C), torch.randn(4, C)
    share = mix.share.reshape(4, 4, 8, 4, 8).mean((2, 4)).reshape(4, 16, 1)
    assert ((share > 0) & (share < 1)).any()
    own, pasted = ((weight * tokens).sum(1) / weight.sum(1) for weight in (share, 1 - share))
    expected = (cross_entropy(own, Y) + cross_entropy(pasted, Y.flip(0))).mean() / 2
    assert_close(SMMixTarget()(Output(logits, tokens), Truth(Y, clean=logits), mix)[1].value, expected)


@pytest.mark.parametrize("family", ["vit", "vit, oblong", "swin"])
def test_a_model_learns(family: str) -> None:
    """Guide, mixer, student, target: as `tasks/classify.py` puts them together."""
    model, images = build(family).train(), images_for(family)
    target, mixer = SMMixTarget(), make_mixer("smmix")
    student = target.student(model)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.02)
    losses: list[float] = []
    for _ in range(12):
        unmixed = UnmixedBatch(images, Y, student, (0.5,) * 3, (0.5,) * 3)
        mix, guidance = mix_batch(mixer, unmixed, torch.Generator().manual_seed(4))  # the same draws each time
        assert guidance is not None
        loss = lf.total(target(student(mix.apply(images), mix), Truth(Y, clean=guidance.logits), mix))
        optimizer.zero_grad()
        loss.backward()
        assert student.token_head.weight.grad.abs().max() > 0
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    assert model.training
