"""The small MLP-Mixer is timm's, of another size."""

import timm
import torch
from timm.models.mlp_mixer import MlpMixer
from torch.testing import assert_close

import labelflow as lf
from labelflow.models.create import create


def test_it_is_timm_s_mixer_of_the_quickstart_s_size() -> None:
    """64 tokens of 96 channels, four blocks; arguments replace what it is made of."""
    torch.manual_seed(0)
    model = create("mixer_tiny_patch8_64", num_classes=10).eval()
    torch.manual_seed(0)
    timms = MlpMixer(10, img_size=64, patch_size=8, num_blocks=4, embed_dim=96).eval()
    images = torch.randn(2, 3, 64, 64)
    assert_close(model(images), timms(images), rtol=0, atol=0)
    assert model.state_dict().keys() == timms.state_dict().keys()
    deeper = timm.create_model("mixer_tiny_patch8_64", num_blocks=5, img_size=32)
    assert len(deeper.blocks) == 5
    assert deeper.stem.num_patches == 16


def test_labels_are_mixed_by_its_token_mlps() -> None:
    """Without a class token, the mean of all tokens is what arrives; a half that is mixed away pulls it off λ."""
    torch.manual_seed(1)
    aligned = lf.Aligned(create("mixer_tiny_patch8_64", num_classes=10))
    share = torch.ones(2, 1, 64, 64)
    share[:, :, :16] = 0
    _, arrived = aligned(torch.randn(2, 3, 64, 64), share)
    assert_close(arrived, torch.full((2,), 0.75), rtol=0, atol=0.1)
    assert (arrived - 0.75).abs().min() > 1e-4
