"""The guide that asks the model itself, against attention computed by hand from its weights."""

import copy
import gc
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import labelflow as lf
from helpers import FAMILIES, build, images_for
from labelflow.guides import GUIDES, UnmixedBatch


def unmixed(model: nn.Module, images: Tensor, student: lf.Student | None = None) -> UnmixedBatch:
    return UnmixedBatch(images, torch.zeros(len(images), 5), student or lf.Student(model), (0.5,) * 3, (0.5,) * 3)


def by_hand(model: nn.Module, images: Tensor, grid: tuple[int, int]) -> Tensor:
    """softmax(QKᵀ/√d) of a ViT's last block, patches only, mean over heads and queries: (B, h, w)"""
    x = model.norm_pre(model._pos_embed(model.patch_embed(images)))
    for block in model.blocks[:-1]:
        x = block(x)
    attn, prefix = model.blocks[-1].attn, model.num_prefix_tokens
    qkv = model.blocks[-1].norm1(x) @ attn.qkv.weight.T + attn.qkv.bias
    maps = []
    for one in qkv:  # (N, 3·D)
        seen = torch.zeros(grid[0] * grid[1])
        for head in range(attn.num_heads):
            width = one.shape[1] // 3 // attn.num_heads
            columns = [slice(part * attn.num_heads * width + head * width, None) for part in (0, 1)]
            query, key = (one[:, column][:, :width] for column in columns)
            query, key = attn.q_norm(query), attn.k_norm(key)
            weights = (query @ key.T / width**0.5).softmax(1)  # over all tokens, the class token too
            seen += weights[prefix:, prefix:].mean(0) / attn.num_heads
        maps.append(seen.unflatten(0, grid))
    return torch.stack(maps)


@pytest.mark.parametrize(
    ("family", "grid"),
    [
        ("vit", (4, 4)),
        ("vit, unfused", (4, 4)),
        ("vit, oblong", (3, 5)),
        ("vit, any size", (4, 6)),  # which pads images
        ("vit, registers", (4, 4)),
        ("vit, average", (4, 4)),
        ("vit, no class token", (4, 4)),
        ("deit distilled", (4, 4)),
        ("deit3", (4, 4)),
    ],
)
def test_the_last_block_s_attention_between_patches(family: str, grid: tuple[int, int]) -> None:
    model, images = build(family), images_for(family)
    guidance = GUIDES["attention"]()(unmixed(model, images))
    with torch.no_grad():
        assert_close(guidance.importance, by_hand(model, images, grid), atol=1e-6, rtol=1e-5)
        assert_close(guidance.logits, model(images))
    assert guidance.importance.std() > 1e-3
    if model.num_prefix_tokens:
        assert guidance.importance.sum((1, 2)).max() < 0.999  # the rest goes to tokens without a place


@pytest.mark.parametrize("family", ["swin", "swin, padded", "pvt", "cait", "xcit, average", "volo", "lvvit", "beit"])
def test_other_models(family: str) -> None:
    """What a patch's token takes from patches, in the last block in which it takes anything from others."""
    family = family if family in FAMILIES else next(name for name in FAMILIES if name.startswith(family))
    model, images = build(family), images_for(family)
    student = lf.Student(model, {"tokens"})
    importance = GUIDES["attention"]()(unmixed(model, images, student)).importance
    assert importance.shape[1:] == student.token_grid(FAMILIES[family][2])
    assert importance.min() >= 0
    assert importance.sum((1, 2)).max() < 1 + 1e-5
    assert importance.std() > 1e-4  # class attention at the end is not what is shown


def test_the_model_is_left_as_it_was() -> None:
    model, images = build("vit"), images_for("vit")
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.5
    model.train()
    model.blocks[0].eval()
    modes = [module.training for module in model.modules()]
    weights = copy.deepcopy(model.state_dict())
    guide, student = GUIDES["attention"](), lf.Student(model, {"tokens", "flow"})
    state = torch.get_rng_state()
    found = [guide(unmixed(model, images, student)) for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(found[0].importance, found[1].importance)  # nothing was dropped
    assert not found[0].importance.requires_grad
    assert not found[0].logits.requires_grad
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    copy.deepcopy(model)
    pickle.dumps(model)


def test_its_hooks_go_with_it() -> None:
    def hooks(model: nn.Module) -> int:
        return sum(len(module._forward_hooks) for module in model.modules())

    model, images = build("cait"), images_for("cait")
    before = hooks(model)
    guide = GUIDES["attention"]()
    student = lf.Student(model)
    mixing = hooks(model) - before  # the student's own
    guide(unmixed(model, images, student))
    once = hooks(model)
    guide(unmixed(model, images, student))
    assert hooks(model) == once > before + mixing
    del guide
    gc.collect()
    assert hooks(model) == before + mixing
    guide = GUIDES["attention"]()
    guide(unmixed(model, images, student))
    del model, student
    gc.collect()
    assert not guide.watchers  # nor does it keep a model alive


def test_under_autocast_it_is_nearly_the_same() -> None:
    model, images = build("vit"), images_for("vit")
    guide = GUIDES["attention"]()
    exact = guide(unmixed(model, images))
    with torch.autocast("cpu", torch.bfloat16):
        rough = guide(unmixed(model, images))
    assert rough.importance.dtype == torch.float32
    assert_close(rough.importance, exact.importance, atol=0.02, rtol=0)


def test_the_student_s_precision_is_kept() -> None:
    """Accelerate's mixed precision is in the student's forward, so that is what is called."""
    model, images = build("vit"), images_for("vit")
    student = lf.Student(model)
    forward = student.forward
    student.forward = torch.autocast("cpu", torch.bfloat16)(forward)  # type: ignore[method-assign]
    assert GUIDES["attention"]()(unmixed(model, images, student)).logits.dtype == torch.bfloat16
