"""The guide that asks the model's gradient, against plain autograd, and what it must leave alone."""

import copy

import pytest
import timm
import torch
import torch.nn.functional as F
from timm.layers import resample_abs_pos_embed
from torch import Tensor, nn
from torch.testing import assert_close

import labelflow as lf
from helpers import FAMILIES, build, images_for
from labelflow.guides import GUIDES, UnmixedBatch
from labelflow.mixers import guide_parameters, make_mixer, mix_batch


def unmixed(model: nn.Module, images: Tensor, student: lf.Student | None = None) -> UnmixedBatch:
    with torch.no_grad():
        logits = model(images)
    classes = lf.soft_labels(torch.arange(len(images)), logits.shape[1], 0.1)
    return UnmixedBatch(images, classes, student or lf.Student(model), (0.5,) * 3, (0.5,) * 3)


def by_hand(model: nn.Module, images: Tensor, classes: Tensor) -> Tensor:
    """√ of the mean over colours of (∂ loss / ∂ pixel)², image by image."""
    maps = []
    for image, label in zip(images, classes, strict=True):
        pixels = image.unsqueeze(0).clone().requires_grad_()
        (-(label * model(pixels).log_softmax(1)).sum()).backward()
        assert pixels.grad is not None
        maps.append((pixels.grad[0] ** 2).mean(0) ** 0.5)
    return torch.stack(maps)


@pytest.mark.parametrize("family", ["vit", "swin", "convnext"])
def test_the_whole_gradient(family: str) -> None:
    seen = unmixed(build(family), images_for(family))
    guidance = GUIDES["gradient"](size=1.0)(seen)
    with torch.no_grad():
        assert_close(guidance.logits, seen.student.model(seen.images))
    expected = by_hand(copy.deepcopy(seen.student.model), seen.images, seen.classes)
    assert_close(guidance.importance, expected, atol=1e-6, rtol=1e-4)
    assert expected.std() > 0


@pytest.mark.parametrize(
    "family", ["vit", "vit, oblong", "vit, registers", "deit distilled", "deit3", "lvvit", "convnext"]
)
def test_half_the_size_is_a_smaller_model_with_the_same_weights(family: str) -> None:
    model, images = build(family), images_for(family)
    guidance = GUIDES["gradient"]()(unmixed(model, images))
    size = guidance.importance.shape[1:]
    assert size.numel() <= 0.5 * images.shape[2:].numel()
    small = copy.deepcopy(model)
    if family != "convnext":
        name, arguments, _ = FAMILIES[family]
        small = timm.create_model(name, **{**arguments, "img_size": tuple(size)}).eval()
        weights = model.state_dict()
        prefix = 0 if model.no_embed_class else model.num_prefix_tokens
        grids = small.patch_embed.grid_size, model.patch_embed.grid_size
        weights["pos_embed"] = resample_abs_pos_embed(weights["pos_embed"], *grids, num_prefix_tokens=prefix)
        small.load_state_dict(weights)
    expected = by_hand(small, F.adaptive_avg_pool2d(images, size), unmixed(model, images).classes)
    assert_close(guidance.importance, expected, atol=1e-6, rtol=1e-3)
    assert guidance.logits is None  # these were of other images


@pytest.mark.parametrize("family", ["swin", "mixer"])
def test_a_model_that_takes_no_other_size_sees_the_whole(family: str) -> None:
    seen, guide = unmixed(build(family), images_for(family)), GUIDES["gradient"]()
    whole = GUIDES["gradient"](size=1.0)(seen)
    with pytest.warns(UserWarning, match=r"does not take images of \d+×\d+ pixels, so .* at full size \(\w+Error: ."):
        first = guide(seen)
    for guidance in (first, guide(seen)):  # the second time, without a word
        assert torch.equal(guidance.importance, whole.importance)
        assert guidance.logits is not None
    assert len(guide.refused) == 1  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore:.* does not take images of")  # Swin and LeViT
@pytest.mark.parametrize("family", ["vit", "swin", "convnext", "levit"])
@pytest.mark.parametrize("size", [0.5, 1.0])
def test_it_leaves_nothing_behind(family: str, size: float) -> None:
    model, images = build(family), images_for(family)
    student = lf.Student(model)
    seen = unmixed(model, images, student)
    student.train()
    next(iter(model.children())).eval()  # of a training model, a frozen part
    first = next(model.parameters())
    first.grad = torch.ones_like(first)
    images.requires_grad_()
    modes = [module.training for module in student.modules()]
    attributes = [repr(vars(module)) for module in model.modules()]
    state = copy.deepcopy(student.state_dict())
    chance = torch.get_rng_state()
    with torch.no_grad():
        guidance = GUIDES["gradient"](size=size)(seen)
    assert guidance.importance.sum() > 0
    assert not guidance.importance.requires_grad
    assert modes == [module.training for module in student.modules()]
    assert attributes == [repr(vars(module)) for module in model.modules()]
    assert images.grad is None
    assert torch.equal(first.grad, torch.ones_like(first))
    assert all(other.grad is None for other in list(model.parameters())[1:])
    for name, value in student.state_dict().items():
        assert torch.equal(value, state[name])
    assert torch.equal(torch.get_rng_state(), chance)


class Remembering(nn.Module):
    """As transformers' Swin keeps the last size in mind, and LeViT a bias in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 5, 3)
        self.last: tuple[int, ...] = (32, 32)
        self.cache: dict[str, Tensor] = {"here": torch.zeros(1)}

    def forward(self, images: Tensor) -> Tensor:
        self.last = images.shape[2:]
        if not self.training:
            self.cache["bias"] = self.layer.bias * 2
        return self.layer(images).mean((2, 3))


@pytest.mark.parametrize("size", [0.5, 1.0])
def test_a_model_that_remembers_is_as_it_was(size: float) -> None:
    model = Remembering()
    seen = UnmixedBatch(torch.rand(2, 3, 32, 32), torch.eye(5)[:2], lf.Student(model), (0.5,) * 3, (0.5,) * 3)
    assert GUIDES["gradient"](size=size)(seen).importance.sum() > 0
    assert model.last == (32, 32)
    assert list(model.cache) == ["here"]


def test_puzzlemix_is_guided_by_it() -> None:
    model, images = build("vit"), images_for("vit")
    student = lf.Student(model, {"flow"})  # whose hooks are idle meanwhile
    batch = unmixed(model, images, student)
    mix, guidance = mix_batch(make_mixer("puzzlemix"), batch, torch.Generator().manual_seed(0))
    assert guidance is not None
    assert guidance.importance.shape == (4, 16, 16)
    assert mix.sources is not None
    output = student(mix.apply(images), mix)
    assert output.flow is not None
    assert guide_parameters(make_mixer("puzzlemix")) == 0
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.zero_()
    mix, guidance = mix_batch(make_mixer("puzzlemix"), unmixed(model, images, student))
    assert guidance is not None
    assert (guidance.importance == 0).all()  # nothing matters: all parts do alike
    assert mix.lam.isfinite().all()


@pytest.mark.parametrize("size", [0.0, 1.5, -1.0])
def test_bad_sizes(size: float) -> None:
    with pytest.raises(ValueError, match="0 < size <= 1"):
        GUIDES["gradient"](size=size)
