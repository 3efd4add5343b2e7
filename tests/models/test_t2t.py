"""T2T-ViT: the released parameters and logits; any image size; loading."""

import json
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from timm.optim import param_groups_layer_decay
from torch import nn
from torch.testing import assert_close

import labelflow as lf
from helpers import GOLDEN, box_mix, fill, golden, sharpen
from labelflow.adapters.t2t import attend_linearly
from labelflow.models.create import create
from labelflow.models.t2t import T2TViT, sinusoid

FACTS = json.loads((GOLDEN / "t2t_keys.json").read_text())["models"]
SMALL = {"token_dim": 8, "embed_dim": 24, "depth": 2, "num_heads": 3}
KINDS = ["t2t_vit_14", "t2t_vit_t_14"]


def small(name: str = "t2t_vit_14", **arguments: object) -> T2TViT:
    return sharpen(timm.create_model(name, **{**SMALL, "img_size": 64, "num_classes": 5, **arguments})).eval()


def images(height: int = 64, width: int = 64) -> torch.Tensor:
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("name", FACTS)
def test_parameters_are_those_of_the_released_weights(name: str) -> None:
    facts = FACTS[name]
    with torch.device("meta"):
        model = timm.create_model(name)
    assert sum(parameter.numel() for parameter in model.parameters()) == facts["params_total"]
    fixed = [key for key, parameter in model.named_parameters() if not parameter.requires_grad]
    assert fixed == facts["not_trainable"]
    if "state_dict" in facts:
        shapes = {key: list(tensor.shape) for key, tensor in model.state_dict().items()}
        assert list(shapes.items()) == list(facts["state_dict"].items())


@pytest.mark.parametrize(("array", "scale"), [("logits", None), ("logits_qkscale_embed", 256**-0.5)])
@pytest.mark.parametrize("fused", [False, True])
def test_golden_logits(array: str, scale: float | None, fused: bool) -> None:
    facts, arrays = json.loads((GOLDEN / "t2t_vit_7_eval.json").read_text()), np.load(GOLDEN / "t2t_vit_7_eval.npz")
    model = fill(timm.create_model(facts["model"], qk_scale=scale), skip=("pos_embed",)).eval()
    for block in model.blocks:
        block.attn.fused_attn = fused
    pictures = torch.from_numpy(golden.images(2, 3, 224, 224))
    with torch.no_grad():
        assert_close(model(pictures), torch.from_numpy(arrays[array]), atol=1e-4, rtol=0)
        tokens = model.tokens_to_token(pictures).flatten(1, 2)
    assert_close(tokens[:, ::14, ::4], torch.from_numpy(arrays["tokens"]), atol=1e-4, rtol=0)
    assert_close(model.pos_embed[0, :3], torch.from_numpy(arrays["pos_embed_first3"]))


def test_token_modules_keep_their_values() -> None:
    """Without a projection, attention adds nothing to them."""
    for name in KINDS:
        module, x = small(name).tokens_to_token.attention1, torch.randn(2, 20, 147)
        for layer in (module.proj, module.mlp[-2]) if name == "t2t_vit_14" else (module.attn.proj, module.mlp.fc2):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
        made = module.kqv if name == "t2t_vit_14" else module.attn.qkv
        assert_close(module(x), made(module.norm1(x))[..., 16:])


def test_a_performer_estimates_softmax_attention() -> None:
    """With many features, drawn anew: Lemma 1 of the Performer paper."""
    module, x = small().tokens_to_token.attention1, 0.3 * torch.randn(1, 6, 8)
    module.w = nn.Parameter(torch.randn(200_000, 8), requires_grad=False)
    assert_close(module.features(x) @ module.features(x).mT, (x @ x.mT).exp(), atol=0.03, rtol=0.03)
    labels = torch.rand(1, 6, 2)
    assert_close(
        attend_linearly(x, x, module.w, labels),
        lf.flow.normalise((x @ x.mT).softmax(-1) @ labels),
        atol=0.01,
        rtol=0,
    )


def test_performers_count_in_float32() -> None:
    """A float16 is 0 where its exponent is below -17; with 8 dimensions or more, -|x|²/2 is."""
    module = small().tokens_to_token.attention1
    query, key, value = 3 * torch.randn(3, 2, 20, 8)
    expected = module.attend(query, key, value)
    with torch.autocast("cpu", torch.float16):
        assert_close(module.attend(query, key, value), expected)
    whole = small().bfloat16()
    assert whole(images().bfloat16()).dtype == torch.bfloat16


def test_labels_survive_features_that_vanish() -> None:
    """exp(-|k|²/2) leaves float32 long before its ratios do."""
    query, key, w, labels = 5 * torch.randn(2, 9, 8), 5 * torch.randn(2, 9, 8), torch.randn(4, 8), torch.rand(2, 9, 2)
    q, k = (torch.exp(z.double() @ w.double().T - z.double().square().sum(-1, keepdim=True) / 2) for z in (query, key))
    assert (k.float() == 0).any()
    expected = lf.flow.normalise(q @ k.mT @ labels.double()).float()
    assert_close(attend_linearly(query, key, w, labels), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", KINDS)
def test_dropout_in_training_is_the_models_own(name: str) -> None:
    model = small(name, token_drop_rate=0.5, drop_path_rate=0.5).train()
    torch.manual_seed(7)
    expected = model(images())
    torch.manual_seed(7)
    logits, _ = lf.Aligned(model)(images(), box_mix(images()).share)
    assert torch.equal(logits, expected)
    assert not torch.equal(model(images()), expected)


def test_performers_alone_drop_tokens_unless_told() -> None:
    with torch.device("meta"):
        drops = [timm.create_model(name).tokens_to_token.attention1 for name in KINDS]
    assert (drops[0].drop.p, drops[0].mlp[-1].p, drops[1].attn.drop.p) == (0.1, 0.1, 0.0)


def test_positions_are_sinusoids() -> None:
    table = sinusoid(50, 6)
    assert table[7, 2].item() == pytest.approx(np.sin(7 / 10000 ** (2 / 6)), abs=1e-6)
    assert table[7, 5].item() == pytest.approx(np.cos(7 / 10000 ** (4 / 6)), abs=1e-6)
    assert small().pos_embed.shape == (1, 17, 24)
    assert small(img_size=(48, 80)).pos_embed.shape == (1, 16, 24)


@pytest.mark.parametrize("name", KINDS)
def test_weights_load_at_another_resolution_and_for_other_classes(name: str, tmp_path: Path) -> None:
    model = small(name)
    path = str(tmp_path / "t2t.pth.tar")
    torch.save({"state_dict_ema": {f"module.{key}": tensor for key, tensor in model.state_dict().items()}}, path)
    arguments = {**SMALL, "num_classes": 5}
    same = timm.create_model(name, **arguments, img_size=64, checkpoint_path=path).eval()
    assert torch.equal(same(images()), model(images()))
    larger = create(name, init=path, **arguments, img_size=(96, 64)).eval()
    grid = model.pos_embed[:, 1:].unflatten(1, (4, 4)).permute(0, 3, 1, 2)
    grid = nn.functional.interpolate(grid, (6, 4), mode="bicubic").flatten(2).transpose(1, 2)
    assert_close(larger.pos_embed, torch.cat([model.pos_embed[:, :1], grid], 1))
    assert_close(larger(images(96, 64)), model(images(96, 64)))  # resized when loaded, or in the forward pass
    other = create(name, init=path, **SMALL, img_size=64, num_classes=3).eval()
    assert_close(other.forward_features(images()), model.forward_features(images()))
    assert other(images()).shape == (2, 3)
    assert not other.pos_embed.requires_grad


def test_classifier_can_be_replaced() -> None:
    model = small()
    model.reset_classifier(7)
    assert model(images()).shape == (2, 7)
    assert model.get_classifier() is model.head
    model.reset_classifier(0)
    assert_close(model(images()), model.forward_head(model.forward_features(images()), pre_logits=True))
    with pytest.raises(ValueError, match="global_pool must be 'token'"):
        model.reset_classifier(7, "avg")


@pytest.mark.parametrize("name", KINDS)
def test_training_as_timm_expects_it(name: str) -> None:
    model = small(name, drop_path_rate=0.1)
    assert model.blocks[1].drop_path1.drop_prob == pytest.approx(0.1)
    assert model.no_weight_decay() == {"cls_token"}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = param_groups_layer_decay(model, layer_decay=0.9)  # every parameter finds its group
    assert sum(len(group["params"]) for group in groups) == len(trained)
    model(images()).sum().backward()
    expected = [parameter.grad.clone() for parameter in trained]
    model.zero_grad()
    model.set_grad_checkpointing()
    model(images()).sum().backward()
    assert_close([parameter.grad for parameter in trained], expected)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="one of performer, transformer, not 'linear'"):
        small(token_module="linear")
    with pytest.raises(ValueError, match="at least 16×16 pixels, not 8×64"):
        small()(images(8, 64))
