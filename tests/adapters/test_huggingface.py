"""Hugging Face's models as they are, an optional dependency."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import labelflow as lf

CONFIG = {"image_size": 32, "patch_size": 8, "num_labels": 5, "hidden_size": 24, "num_attention_heads": 3}
CONFIG |= {"num_hidden_layers": 2, "intermediate_size": 48}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_model_is_aligned_as_it_is(attention: str) -> None:
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    model = ViTForImageClassification(ViTConfig(**CONFIG, attn_implementation=attention)).eval()
    images = torch.rand(4, 3, 32, 32)
    mix = lf.CutMix()(images)
    aligned = lf.Aligned(model)
    output, share = aligned(mix.apply(images), mix.share)
    assert torch.equal(output.logits, model(mix.apply(images)).logits)
    assert share.shape == (4,)
    _, constant = aligned(images, torch.full((4, 1, 32, 32), 0.3))
    assert_close(constant, torch.full((4,), 0.3))
    assert lf.Student(model, {"flow"})(images, mix).flow is not None
    assert [layer.name for layer in aligned.trace(images, mix.share)] == ["vit.layers.0", "vit.layers.1"]


def test_another_process(tmp_path: Path) -> None:
    """labelflow does not import transformers, refuses an older one, and follows a model that was saved elsewhere."""
    from transformers import ViTConfig, ViTForImageClassification

    torch.save(lf.Aligned(ViTForImageClassification(ViTConfig(**CONFIG))), tmp_path / "aligned.pt")
    code = f"""
import importlib.metadata, sys
import labelflow, pytest, torch

assert "transformers" not in sys.modules

from transformers import ViTConfig, ViTForImageClassification

model, version = ViTForImageClassification(ViTConfig(**{CONFIG})), importlib.metadata.version
importlib.metadata.version = lambda name: "5.17.0"
with pytest.raises(ValueError, match="newer transformers: transformers>=5.18 .* found transformers==5.17.0"):
    labelflow.Aligned(model)
importlib.metadata.version = version

aligned = torch.load({str(tmp_path / "aligned.pt")!r}, weights_only=False)
_, share = aligned(torch.rand(2, 3, 32, 32), torch.ones(2, 1, 32, 32))
assert share.tolist() == [1, 1]
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_model_of_theirs_is_refused() -> None:
    from transformers import ViTConfig, ViTForMaskedImageModeling

    with pytest.raises(ValueError, match=r"no adapter for transformers.*ViTForMaskedImageModeling; .* follows: .*Swin"):
        lf.Aligned(ViTForMaskedImageModeling(ViTConfig(**CONFIG)))


def test_inputs_may_be_given_by_name() -> None:
    class Mixing(nn.Module):
        def forward(self, tokens: Tensor) -> Tensor:
            return tokens.flip(1)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch_embed, self.block = nn.Conv2d(3, 8, 8, 8), Mixing()

        def forward(self, images: Tensor) -> Tensor:
            tokens = self.patch_embed(images).flatten(2).mT
            return self.block(tokens=torch.cat([tokens[:, :1], tokens], 1))[:, 0]

    @lf.adapters.register(Mixing, taps=lambda block: {"tokens": lf.adapters.Tap(block, "input")})
    def move(block: Mixing, observed: lf.adapters.Observed, labels: lf.flow.Labels) -> lf.flow.Labels:
        assert observed["tokens"].shape[1] == labels.values.shape[1] == 17  # a token without a place has joined
        return lf.flow.Labels(labels.values.flip(1), labels.grid)

    lf.adapters.register_model(
        Model, path=lambda model: [model.patch_embed, model.block], heads=lambda model, labels: labels[:, :1]
    )
    images = torch.rand(2, 3, 32, 32)
    share = torch.zeros(2, 1, 32, 32)
    share[:, :, 24:, 24:] = 1
    assert lf.Aligned(Model())(images, share)[1].tolist() == [1, 1]
