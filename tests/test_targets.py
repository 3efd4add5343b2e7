"""Targets against their definitions, and TransMix against its authors' numbers."""

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

import labelflow as lf
from families import dense_label
from helpers import box_mix, build, fill, images_for
from labelflow.targets import PAL, TARGETS, Plain, Taught, TLAlign, TransMix, Truth
from targets.test_token_label import truth_for
from test_golden import load, pasted

CLASSES = torch.tensor([0, 3, 1, 3])
Y = lf.soft_labels(CLASSES, 5, smoothing=0.1)


def loss(target: object, model: nn.Module, images: Tensor, mix: lf.Mix, y: Tensor = Y) -> Tensor:
    return lf.total(target(target.student(model)(mix.apply(images), mix), Truth(y), mix))


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    return -(y * logits.log_softmax(1)).sum(1).mean()


def test_plain_is_cross_entropy_with_areas() -> None:
    images, model = images_for("vit"), build("vit")
    mix = box_mix(images)
    area = mix.share.mean((1, 2, 3))[:, None]
    expected = cross_entropy(model(mix.apply(images)), area * Y + (1 - area) * Y.flip(0))
    assert_close(loss(Plain(), model, images, mix), expected)


@pytest.mark.parametrize("family", ["vit", "deit distilled", "swin", "pvt"])
def test_tl_align_is_cross_entropy_with_the_oracle_s_label(family: str) -> None:
    images, model = images_for(family), build(family)
    mix = box_mix(images)
    label = dense_label(model, mix.apply(images), mix, F.one_hot(CLASSES, 5).float())
    y = 0.9 * (label.mean(1) if label.ndim == 3 else label) + 0.1 / 5  # smoothing is linear
    assert_close(loss(TLAlign(), model, images, mix), cross_entropy(model(mix.apply(images)), y), atol=1e-5, rtol=0)


def test_transmix_is_its_authors() -> None:
    facts, arrays = load("transmix_deit_tiny")
    images, mix = pasted(facts["batch"], *facts["pixel_box_y0_y1_x0_x1"])
    model = fill(timm.create_model(facts["model"], num_classes=facts["num_classes"])).train()
    y = lf.soft_labels(torch.tensor(facts["labels"]), facts["num_classes"], facts["smoothing"])
    target = TransMix()
    output = target.student(model)(mix.apply(images), mix)
    share = target.share(output.flow, mix)
    assert_close(1 - share, arrays["lam_partner"].float(), atol=1e-6, rtol=0)
    assert_close(mix.blend(y, share), arrays["target"], atol=1e-6, rtol=0)
    assert_close(output.logits, arrays["logits"], atol=1e-4, rtol=0)
    value = lf.total(target(output, Truth(y), mix))
    assert_close(value.item(), facts["loss"], atol=1e-5, rtol=0)
    value.backward()
    for name, parameter in model.named_parameters():
        assert_close(parameter.grad.norm().item(), facts["grad_norm"][name], atol=0, rtol=1e-3, msg=name)


def test_transmix_reads_the_first_pixel_of_a_token() -> None:
    """s_attn = Σa·M/Σa with M the pixel mask at (16i, 16j), for a box that cuts through patches, from the weights."""
    model = build("vit")
    images = images_for("vit")
    mix = lf.Mix(torch.tensor([3, 2, 1, 0]), torch.ones(4, 1, *images.shape[2:]))
    height, width = images.shape[2:]
    mix.share[:, :, height // 5 : height - 5, width // 3 : width - 3] = 0
    patch = model.patch_embed.patch_size[0]
    seen: list[Tensor] = []
    attn = model.blocks[-1].attn
    attn.fused_attn = False
    attn.attn_drop.register_forward_hook(lambda module, inputs, output: seen.append(output))
    output = TransMix().student(model)(mix.apply(images), mix)
    row = seen[-1].mean(1)[:, 0, model.num_prefix_tokens :]  # (B, N): from the class token to the patches
    corner = mix.share[:, 0, ::patch, ::patch].flatten(1)
    assert not torch.equal(corner, mix.tokens((height // patch, width // patch)).flatten(1))
    assert_close(output.flow.heads[:, 0, 0], (row * corner).sum(1) / row.sum(1))
    area = TransMix(mask="area").student(model)(mix.apply(images), mix)
    assert not torch.equal(area.flow.heads, output.flow.heads)


@pytest.mark.parametrize("detach", [False, True])
def test_pal_trusts_attention_as_much_as_the_model_is_right(detach: bool) -> None:
    """λ' = c·Σa·m/Σa + (1-c)·λ, image by image, with a from the weights; c is a part of the graph, or a number."""
    model, images = build("vit"), images_for("vit")
    mix = box_mix(images)
    seen: list[Tensor] = []
    attn = model.blocks[-1].attn
    attn.fused_attn = False
    attn.attn_drop.register_forward_hook(lambda module, inputs, output: seen.append(output.detach()))
    logits = model(mix.apply(images))
    attention = seen[-1].mean(1)[:, 0, model.num_prefix_tokens :]  # (B, N): from the class token to the patches
    losses = []
    for i, own in enumerate(mix.lam):
        j = 3 - i
        answer, y = logits[i].softmax(0), own * Y[i] + (1 - own) * Y[j]
        right = (answer * y).sum() / (answer.norm() * y.norm())
        right = right.detach() if detach else right
        mask = mix.tokens((4, 4))[i].flatten()
        share = right * (attention[i] * mask).sum() / attention[i].sum() + (1 - right) * own
        losses.append(share * cross_entropy(logits[[i]], Y[[i]]) + (1 - share) * cross_entropy(logits[[i]], Y[[j]]))
    expected = torch.stack(losses).mean()
    found = loss(PAL(detach), model, images, mix)
    assert_close(found, expected)
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert_close(torch.autograd.grad(found, weights), torch.autograd.grad(expected, weights), atol=1e-5, rtol=1e-4)


ALONE = [name for name, target in TARGETS.items() if not (target.dense or target.teacher or name == "stl_labeler")]


@pytest.mark.parametrize("name", ALONE)  # the labeller has a term for its tokens, too
def test_a_constant_share_is_a_fixed_point_of_every_target(name: str) -> None:
    images, model = images_for("vit"), build("vit")
    mix = lf.MixUp(alpha=0.8)(images, torch.Generator().manual_seed(3))
    assert_close(loss(TARGETS[name](), model, images, mix), loss(Plain(), model, images, mix))


@pytest.mark.parametrize("name", TARGETS)
def test_a_student_without_a_mix_is_the_model(name: str) -> None:
    images, model = images_for("swin"), build("swin")
    output = TARGETS[name]().student(model)(images)
    assert torch.equal(output.logits, model(images))
    assert output.flow is None


@pytest.mark.parametrize("name", TARGETS)
def test_every_image_has_its_own_share(name: str) -> None:
    """The same images and labels, with shares that have changed places, have another loss. One that takes its mean over
    the batch before it multiplies by λ would not notice: it has room for the mean λ only."""
    images, model = images_for("vit"), build("vit")
    share = torch.tensor([0.9, 0.2, 0.6, 0.4]).reshape(-1, 1, 1, 1).expand(-1, 1, *images.shape[2:])
    partner = torch.tensor([3, 2, 1, 0])
    mixed = lf.Mix(partner, share).apply(images)
    target = TARGETS[name]()
    student = target.student(model)
    known = truth_for(4, 16)
    noise = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(6))
    assert known.dense is not None
    truth = known._replace(clean=noise[0], taught=Taught(noise[1]), tokens=known.dense.tokens)

    def loss_with(order: list[int]) -> float:
        mix = lf.Mix(partner, share[order])
        return lf.total(target(student(mixed, mix), truth, mix)).item()

    first, *others = (loss_with(order) for order in ([0, 1, 2, 3], [1, 2, 3, 0], [1, 0, 2, 3]))
    assert all(abs(other - first) > 1e-3 for other in others)
