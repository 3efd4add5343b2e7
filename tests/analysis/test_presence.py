"""Eq. 2 of TL-Align, against its definition."""

import pytest
import timm
import torch
from torch import Tensor, nn

from labelflow import Aligned
from labelflow.analysis.presence import presence

TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3}


def naive_presence(weights: Tensor) -> Tensor:
    """Σⱼ |wⱼᵢ| / Σₖ |wⱼₖ|, spelled out: (N, M) -> (M,)"""
    outputs, inputs = weights.shape
    found = torch.zeros(inputs)
    for j in range(outputs):
        total = sum(float(weights[j, k].abs()) for k in range(inputs))
        for i in range(inputs):
            found[i] += float(weights[j, i].abs()) / total
    return found


def attention_of(model: nn.Module, images: Tensor) -> list[Tensor]:
    """The mean over heads of every block's attention, from its own queries and keys: (B, N, N) each"""
    found: list[Tensor] = []

    def look(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        x = inputs[0]
        qkv = module.qkv(x).unflatten(2, (3, module.num_heads, -1)).permute(2, 0, 3, 1, 4)  # type: ignore[operator]
        found.append((qkv[0] @ qkv[1].mT * module.scale).softmax(-1).mean(1))

    handles = [block.attn.register_forward_hook(look) for block in model.blocks]  # type: ignore[union-attr]
    with torch.no_grad():
        model(images)
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize("sources", [512, 5, 1])
def test_presence_of_attention_is_its_definition(sources: int) -> None:
    model = timm.create_model("vit_tiny_patch16_224", **TINY).eval()
    for block in model.blocks:
        nn.init.normal_(block.attn.qkv.weight, std=0.4)
    images = torch.rand(2, 3, 32, 32)
    layers = presence(model, images, sources=sources)
    assert [layer.name for layer in layers] == ["blocks.0", "blocks.1"]
    for layer, weights in zip(layers, attention_of(model, images), strict=True):
        assert layer.grid == (4, 4)
        for values, matrix in zip(layer.values, weights, strict=True):
            torch.testing.assert_close(values, naive_presence(matrix), atol=1e-5, rtol=1e-5)
        assert layer.values.std() > 0.01  # it fluctuates
        torch.testing.assert_close(layer.map.flatten(1), layer.values[:, 1:])


def test_presence_is_one_inside_for_a_depthwise_convolution() -> None:
    """Eq. 3: away from the border, whatever the kernel."""
    model = timm.create_model("convnext_atto", depths=(1, 1, 1, 1), dims=(8, 8, 8, 8)).eval()
    layers = presence(model, torch.rand(1, 3, 64, 64))
    first = layers[0]
    assert first.grid == (16, 16)
    inner = first.map[0, 6:-6, 6:-6]  # a kernel of 7 reaches 3 places, and those that normalise near the border 3 more
    torch.testing.assert_close(inner, torch.ones_like(inner), atol=1e-5, rtol=0)
    assert (first.map[0, 0] - 1).abs().max() > 1e-3  # the border is another matter


def test_presence_of_a_convolution_is_its_definition() -> None:
    model = timm.create_model("convnext_atto", depths=(1, 1, 1, 1), dims=(4, 4, 4, 4)).eval()
    layer = presence(model, torch.rand(1, 3, 32, 32))[0]  # on 8×8 places
    kernels = model.stages[0].blocks[0].conv_dw.weight.detach()  # (C, 1, 7, 7)
    found = torch.zeros(64)
    for kernel in kernels[:, 0]:
        weights = torch.zeros(64, 64)
        for j in range(64):
            for i in range(64):
                down, right = i // 8 - j // 8 + 3, i % 8 - j % 8 + 3
                if 0 <= down < 7 and 0 <= right < 7:
                    weights[j, i] = kernel[down, right]
        found += naive_presence(weights) / len(kernels)
    torch.testing.assert_close(layer.values[0], found, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", "cait_xxs24_224", "mixer_s32_224", "hiera_tiny_224"])
def test_presence_sums_to_the_tokens_that_leave(name: str) -> None:
    small = {
        "swin_tiny_patch4_window7_224": {"embed_dim": 12, "depths": (1, 1, 1, 1), "num_heads": (1, 1, 1, 1)},
        "cait_xxs24_224": {"embed_dim": 24, "depth": 2, "num_heads": 2},
        "hiera_tiny_224": {"embed_dim": 12, "stages": (1, 1, 1, 1)},
    }
    model = timm.create_model(name, **small.get(name, {})).eval()
    layers = presence(model, torch.rand(1, 3, 224, 224))
    trace = Aligned(model).trace(torch.rand(1, 3, 224, 224), torch.ones(1, 1, 224, 224))
    for layer, after in zip(layers, trace, strict=True):
        assert layer.values.min() >= 0
        torch.testing.assert_close(layer.values.sum(1), torch.tensor([float(after.share.shape[1])]), rtol=1e-4, atol=0)


def test_maps_show_tokens_where_they_lie() -> None:
    """Hiera's lie in the order in which they will be pooled."""
    model = timm.create_model("hiera_tiny_224", embed_dim=12, stages=(1, 1, 1, 1)).eval()
    first = presence(model, torch.rand(1, 3, 224, 224))[0]
    assert first.map.shape == (1, 56, 56)
    assert first.values.std() > 1e-4
    torch.testing.assert_close(model.unroll(first.map.flatten(1).unsqueeze(-1))[..., 0], first.values)


def test_the_model_is_left_alone() -> None:
    model = timm.create_model("vit_tiny_patch16_224", **TINY).eval()
    images = torch.rand(1, 3, 32, 32)
    before = model(images)
    presence(model, images)
    assert torch.equal(model(images), before)
    assert not any(module._forward_hooks for module in model.modules())
