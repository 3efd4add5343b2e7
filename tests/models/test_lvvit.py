"""LV-ViT: the released parameters and logits; the paper's ablations; any image size; loading."""

import argparse
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from timm.data import resolve_data_config
from timm.optim import param_groups_layer_decay
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from helpers import GOLDEN, fill, golden, sharpen
from labelflow.models.create import create, read_weights
from labelflow.models.lvvit import STEMS, ConvStem, LVViT, Stem

FACTS = json.loads((GOLDEN / "lvvit_keys.json").read_text())["models"]
SMALL = {"embed_dim": 24, "depth": 3, "num_heads": 3, "stem_width": 8}


def small(name: str = "lvvit_s", **arguments: object) -> LVViT:
    return sharpen(timm.create_model(name, **{**SMALL, "img_size": 64, "num_classes": 5, **arguments})).eval()


def images(height: int = 64, width: int = 64) -> torch.Tensor:
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("name", FACTS)
def test_parameters_are_those_of_the_released_weights(name: str) -> None:
    with torch.device("meta"):
        model = timm.create_model(name)
    facts = FACTS[name]
    assert sum(parameter.numel() for parameter in model.parameters()) == facts["params"]
    shapes = {key: list(tensor.shape) for key, tensor in model.state_dict().items()}
    assert list(shapes.items()) == list(facts["state_dict"].items())
    assert len(model.blocks) == facts["depth"]
    for block in model.blocks:
        assert getattr(block.ls1, "divisor", 1) == getattr(block.ls2, "divisor", 1) == facts["skip_lam"]
        assert block.attn.num_heads == facts["num_heads"]
        assert block.norm1.eps == facts["layernorm_eps"]
    assert model.patch_embed.bn1.eps == facts["batchnorm_eps"]
    assert resolve_data_config(model=model)["crop_pct"] == (0.9 if name in ("lvvit_t", "lvvit_s") else 1.0)


def test_golden_logits() -> None:
    facts, arrays = json.loads((GOLDEN / "lvvit_t_eval.json").read_text()), np.load(GOLDEN / "lvvit_t_eval.npz")
    model = fill(timm.create_model(facts["model"])).eval()
    pictures = torch.from_numpy(golden.images(2, 3, 224, 224))
    with torch.no_grad():
        logits, tokens = model.dense_logits(pictures)
        results = {"logits": model(pictures), "head_cls": logits, "aux_max": tokens.amax(1)}
    for name, result in results.items():
        assert_close(result, torch.from_numpy(arrays[name]), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("stem", "millions", "printed"),
    [
        ("conv1", 24.405, 25),
        ("conv2", 25.693, 25),
        ("conv3_fast", 25.730, 25),  # as many as the next row, whatever the table prints: strides have no parameters
        ("conv3", 25.730, 26),
        ("conv4", 25.767, 26),
        ("conv6", 25.841, 26),
    ],
)
def test_stems_of_table_9(stem: str, millions: float, printed: float) -> None:
    with torch.device("meta"):
        model = timm.create_model("lv_vit_plain_small", stem=stem)
    count = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    assert count == pytest.approx(millions, abs=5e-4)
    assert abs(count - printed) < 0.75
    convolutions = [module for module in model.modules() if isinstance(module, torch.nn.Conv2d)]
    assert tuple(module.kernel_size[0] for module in convolutions) == STEMS[stem].kernels
    assert small(stem=stem).patch_embed(images()).shape == (2, 16, 24)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_convolutions_have_their_channels_last_on_a_gpu(device: str) -> None:
    """And tokens are contiguous then, without a copy."""
    seen: list[bool] = []
    with FakeTensorMode():  # needs no GPU
        stem = ConvStem(32, device=device)
        stem.conv2.register_forward_pre_hook(
            lambda conv, inputs: seen.append(inputs[0].is_contiguous(memory_format=torch.channels_last))
        )
        tokens = stem(torch.rand(2, 3, 32, 32, device=device))
        assert [tokens.is_contiguous()] == seen == [device == "cuda"]
        assert all(parameter.is_contiguous() for parameter in stem.parameters())


def test_a_stem_of_ones_own() -> None:
    model = small(stem=Stem((3, 4), (2, 4)))
    assert model.patch_embed.patch_size == (8, 8)
    assert model.dense_logits(images())[1].shape == (2, 64, 5)
    with pytest.raises(ValueError, match=r"no stem 'conv5'; there are conv1, .*conv6"):
        small(stem="conv5")
    with pytest.raises(ValueError, match="kernel size for each stride"):
        small(stem=((7, 8), (2,)))


@pytest.mark.parametrize("divisor", [1, 2, 3])
def test_residual_branches_are_divided(divisor: float) -> None:
    """Table 10."""
    block, x = small(residual_divisor=divisor).blocks[1], torch.randn(2, 17, 24)
    middle = x + block.attn(block.norm1(x)) / divisor
    assert_close(block(x), middle + block.mlp(block.norm2(middle)) / divisor)
    with pytest.raises(ValueError, match="must be positive, not 0"):
        small(residual_divisor=0)
    with pytest.raises(ValueError, match="exclude each other"):
        small(residual_divisor=2, init_values=1e-5)


def test_plain_is_a_deit_with_16_blocks_and_narrower_mlps() -> None:
    """Row 3 of Table 8."""
    with torch.device("meta"):
        plain, deit = timm.create_model("lv_vit_plain_small"), timm.create_model("deit_small_patch16_224", depth=16)
    width, count = 384, sum(parameter.numel() for parameter in deit.parameters())
    less = 16 * (2 * width * width + width + 3 * width)  # of MLPs and their biases, and the bias of qkv
    assert sum(parameter.numel() for parameter in plain.parameters()) == count - less
    assert set(plain.state_dict()) == {name for name in deit.state_dict() if not name.endswith("qkv.bias")}


@pytest.mark.parametrize("training", [False, True])
def test_logits_are_of_the_class_token_and_the_strongest_tokens(training: bool) -> None:
    model = small().train(training)
    logits, tokens = model.dense_logits(images())
    assert logits.shape == (2, 5)
    assert tokens.shape == (2, 16, 5)
    assert_close(model(images()), logits + 0.5 * tokens.amax(1))
    model.token_share = 0.0
    assert_close(model(images()), logits)


def test_without_aux_head() -> None:
    model = small(aux_head=False)
    assert not [name for name in model.state_dict() if name.startswith("aux")]
    assert_close(model(images()), model.head(model.forward_features(images())[:, 0]))
    with pytest.raises(ValueError, match="create it with aux_head=True"):
        model.dense_logits(images())


def test_both_classifiers_can_be_replaced() -> None:
    model = small()
    model.reset_classifier(7)
    assert [part.shape for part in model.dense_logits(images())] == [(2, 7), (2, 16, 7)]
    model.reset_classifier(0)
    assert_close(model(images()), model.forward_features(images())[:, 0])
    with pytest.raises(ValueError, match="reset_classifier"):
        model.dense_logits(images())
    model.reset_classifier(3)
    assert model.dense_logits(images())[1].shape == (2, 16, 3)
    with pytest.raises(ValueError, match="global_pool must be 'token', not 'avg'"):
        model.reset_classifier(3, "avg")


def test_image_sizes() -> None:
    model = small()
    with pytest.raises(ValueError, match=r"64×64 pixels, not 48×80: create it with img_size=\(48, 80\)"):
        model(images(48, 80))
    model.set_input_size((48, 80))
    assert model.dense_logits(images(48, 80))[1].shape == (2, 15, 5)
    with pytest.raises(ValueError, match="patches of 16 pixels, not 8"):
        model.set_input_size(patch_size=8)
    dynamic = small(dynamic_img_size=True)
    assert_close(dynamic(images()), small()(images()))
    assert dynamic.dense_logits(images(48, 80))[1].shape == (2, 15, 5)
    with pytest.raises(ValueError, match="multiples of 16×16 pixels, not 50×80"):
        dynamic(images(50, 80))
    padded = small(dynamic_img_size=True, dynamic_img_pad=True)
    filled = torch.nn.functional.pad(images(50, 70), (0, 10, 0, 14))
    assert_close(padded(images(50, 70)), dynamic(filled))


def test_features_and_training_as_timm_expects_them() -> None:
    model = small(drop_path_rate=0.1)
    assert [block.drop_path1.drop_prob for block in model.blocks[1:]] == pytest.approx([0.05, 0.1])
    assert model.no_weight_decay() >= {"cls_token", "pos_embed"}
    groups = param_groups_layer_decay(model, layer_decay=0.9)  # every parameter finds its group
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    maps = timm.create_model("lvvit_s", **SMALL, img_size=64, features_only=True, out_indices=(0, 2))(images())
    assert [part.shape for part in maps] == [(2, 24, 4, 4)] * 2
    model.eval()(images()).sum().backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    model.set_grad_checkpointing()
    model(images()).sum().backward()
    for name, parameter in model.named_parameters():
        assert_close(parameter.grad, expected[name])


def released(model: LVViT, path: Path) -> Path:
    """A file as timm's training writes it: with settings, an optimizer, and the average that is evaluated."""
    optimizer = torch.optim.AdamW(model.parameters())
    model(images()).sum().backward()
    optimizer.step()
    ema = {f"module.{name}": tensor for name, tensor in sharpen(model).state_dict().items()}
    checkpoint = {
        "epoch": 309,
        "arch": "lvvit_s",
        "state_dict": {name: torch.zeros_like(tensor) for name, tensor in ema.items()},
        "optimizer": optimizer.state_dict(),
        "args": argparse.Namespace(lr=1.6e-3, mean=None),
        "state_dict_ema": ema,
        "metric": 83.3,
    }
    torch.save(checkpoint, path)
    return path


def test_released_weights_load(tmp_path: Path) -> None:
    model = small()
    path = str(released(model, tmp_path / "lvvit_s.pth.tar"))
    arguments = {**SMALL, "img_size": 64, "num_classes": 5}
    for loaded in (
        timm.create_model("lvvit_s", checkpoint_path=path, **arguments),
        create("lvvit_s", init=path, **arguments),
    ):
        assert torch.equal(loaded.eval()(images()), model(images()))
    plain = create("lvvit_s", init=path, **arguments, aux_head=False).eval()
    assert torch.equal(plain(images()), model.dense_logits(images())[0])


def test_released_weights_load_at_another_size_and_for_other_classes(tmp_path: Path) -> None:
    model = small()
    path = str(released(model, tmp_path / "lvvit_s.pth.tar"))
    other = create("lvvit_s", init=path, **SMALL, img_size=(96, 64), num_classes=3).eval()
    assert [part.shape for part in other.dense_logits(images(96, 64))] == [(2, 3), (2, 24, 3)]
    old, new = model.state_dict(), other.state_dict()
    same = set(old) - {"pos_embed", "head.weight", "head.bias", "aux_head.weight", "aux_head.bias"}
    assert all(torch.equal(new[name], old[name]) for name in same)
    grid = old["pos_embed"][:, 1:].unflatten(1, (4, 4)).permute(0, 3, 1, 2)
    grid = torch.nn.functional.interpolate(grid, (6, 4), mode="bicubic").flatten(2).transpose(1, 2)
    assert_close(new["pos_embed"], torch.cat([old["pos_embed"][:, :1], grid], 1))


class Trap:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


def test_a_file_that_would_execute_something_is_refused(tmp_path: Path) -> None:
    model, sprung = small(), tmp_path / "sprung"
    torch.save({"state_dict": model.state_dict(), "args": Trap(sprung)}, tmp_path / "trap.pth.tar")
    with pytest.raises(ValueError, match="not a checkpoint that can be read"):
        read_weights(tmp_path / "trap.pth.tar")
    with pytest.raises(ValueError, match="not a checkpoint that can be read"):
        create("lvvit_s", init=str(tmp_path / "trap.pth.tar"), **SMALL)
    assert not sprung.exists()
    pickle.loads(pickle.dumps(Trap(sprung)))
    assert sprung.exists()  # so it would have
