"""PVT v1: the released parameter names and counts; any image size; loading."""

import json
from pathlib import Path

import pytest
import timm
import torch
from timm.optim import param_groups_layer_decay
from torch.testing import assert_close

from helpers import GOLDEN, sharpen
from labelflow.models.pvt import checkpoint_filter_fn

FACTS = json.loads((GOLDEN / "pvt_keys.json").read_text())["models"]
SMALL = {"embed_dims": (8, 16, 24, 32), "num_heads": (1, 2, 3, 4), "num_classes": 5}


@pytest.mark.parametrize("name", FACTS)
def test_parameters_are_those_of_the_released_weights(name: str) -> None:
    with torch.device("meta"):
        model = timm.create_model(name)
    assert sum(parameter.numel() for parameter in model.parameters()) == FACTS[name]["params"]
    if "state_dict" in FACTS[name]:
        shapes = {key: list(tensor.shape) for key, tensor in model.state_dict().items()}
        assert list(shapes.items()) == list(FACTS[name]["state_dict"].items())


def test_weights_load_at_another_resolution(tmp_path: Path) -> None:
    """As timm loads them: from a released file, into a model for larger images or other classes."""
    model = sharpen(timm.create_model("pvt_tiny", **SMALL)).eval()
    torch.save({"model": model.state_dict()}, tmp_path / "pvt.pth")
    same = timm.create_model("pvt_tiny", **SMALL, checkpoint_path=str(tmp_path / "pvt.pth")).eval()
    images = torch.randn(2, 3, 224, 224)
    assert torch.equal(same(images), model(images))
    larger = timm.create_model("pvt_tiny", **SMALL, img_size=256).eval()
    state = torch.load(tmp_path / "pvt.pth")
    larger.load_state_dict(checkpoint_filter_fn(state, larger))
    images = torch.randn(2, 3, 256, 256)
    assert_close(larger(images), model(images))  # resized when loaded, or in the forward pass


def test_classifier_can_be_replaced() -> None:
    model = timm.create_model("pvt_tiny", **SMALL)
    images = torch.randn(1, 3, 224, 224)
    model.reset_classifier(7)
    assert model(images).shape == (1, 7)
    model.reset_classifier(0)
    assert model(images).shape == (1, 32)
    with pytest.raises(ValueError, match="global_pool must be 'token'"):
        model.reset_classifier(7, "avg")


def test_drop_path_and_weight_decay_follow_the_published_training() -> None:
    model = timm.create_model("pvt_small", drop_path_rate=0.1)
    rates = [block.drop_path.drop_prob for _, _, blocks in model.stages for block in blocks]
    assert_close(torch.tensor(rates), torch.linspace(0, 0.1, 16))
    assert model.no_weight_decay() == {"cls_token"}
    groups = param_groups_layer_decay(model, layer_decay=0.9)  # every parameter finds its group
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))


@torch.no_grad()
def test_maps_of_stages_are_those_that_make_the_tokens() -> None:
    model = sharpen(timm.create_model("pvt_tiny", **SMALL)).eval()
    images = torch.randn(2, 3, 96, 64)
    tokens, maps = model.forward_intermediates(images)
    assert torch.equal(tokens, model.forward_features(images))
    assert [tuple(one.shape[1:]) for one in maps] == [(8, 24, 16), (16, 12, 8), (24, 6, 4), (32, 3, 2)]
    assert [info["num_chs"] for info in model.feature_info] == [8, 16, 24, 32]
    assert_close(model.norm(maps[3].flatten(2).transpose(1, 2)), tokens[:, 1:])
    for indices, expected in ((2, [2, 3]), ([0, -1], [0, 3])):
        found = model.forward_intermediates(images, indices=indices, intermediates_only=True)
        assert all(torch.equal(one, maps[stage]) for one, stage in zip(found, expected, strict=True))
    assert model.prune_intermediate_layers([1, 3], prune_norm=True) == [1, 3]
    assert not {name for name, _ in model.named_parameters() if name.startswith(("norm.", "head."))}
