"""The guide that asks a trained CNN."""

from typing import Any

import pytest
import torch
from skimage import data
from torch import Tensor, nn
from torch.testing import assert_close

import labelflow as lf
from labelflow.guides import UnmixedBatch
from labelflow.guides.cnn import CNN
from labelflow.mixers import guide_parameters, make_mixer, mix_batch
from labelflow.models.create import create

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def unmixed(
    colours: Tensor, mean: tuple[float, ...] = IMAGENET[0], std: tuple[float, ...] = IMAGENET[1]
) -> UnmixedBatch:
    student: lf.Student = None  # type: ignore[assignment]  # nobody asks it
    shift, scale = (torch.tensor(values).reshape(3, 1, 1) for values in (mean, std))
    return UnmixedBatch((colours - shift) / scale, torch.zeros(len(colours), 2), student, mean, std)


@pytest.fixture(scope="module")
def lite() -> CNN:
    return CNN("tf_efficientnet_lite0", "packaged", size=0)


def test_it_is_the_mean_over_the_channels(lite: CNN) -> None:
    """Of the model in its own colours, in eval mode; ranks are what counts, and the least cell is 0."""
    colours = torch.rand(2, 3, 64, 96)
    before = {name: value.clone() for name, value in lite.trunk.state_dict().items()}
    seen = unmixed(colours)
    seen.images.requires_grad_()
    guidance = lite(seen)
    assert guidance.logits is None
    assert not guidance.importance.requires_grad
    model: Any = create("tf_efficientnet_lite0", "packaged").eval()
    with torch.no_grad():
        features = model.forward_features((colours - 0.5) / 0.5)  # (2, 1280, 2, 3)
    expected = torch.stack([sum(one) / len(one) for one in features])
    assert_close(guidance.importance, expected - expected.amin((1, 2), keepdim=True), atol=1e-5, rtol=1e-4)
    after = lite.trunk.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())  # no statistics are kept
    classifier = sum(parameter.numel() for parameter in model.classifier.parameters())
    assert lite.parameters == sum(parameter.numel() for parameter in model.parameters()) - classifier


def test_the_training_s_colours_do_not_matter(lite: CNN) -> None:
    colours = torch.rand(2, 3, 64, 64)
    other = lite(unmixed(colours, (0.1, 0.2, 0.3), (1.0, 2.0, 0.5))).importance
    assert_close(lite(unmixed(colours)).importance, other, atol=1e-4, rtol=1e-3)


def test_a_picture_of_any_size_has_a_map_of_49_cells() -> None:
    guide = CNN("resnet18", "", size=224)
    for shape in [(64, 64), (224, 224), (300, 100)]:
        assert guide(unmixed(torch.rand(1, 3, *shape))).importance.shape == (1, 7, 7)
    assert CNN("resnet18", "", size=0)(unmixed(torch.rand(1, 3, 64, 90))).importance.shape == (1, 2, 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert guide(unmixed(torch.rand(1, 3, 64, 64))).importance.dtype == torch.float32
    assert guide.parameters == 11_176_512  # without its classifier


def test_a_cat_attracts_the_cells() -> None:
    """A photograph on a plain ground: the partner's cells are the cat's."""
    cat = torch.from_numpy(data.chelsea()).permute(2, 0, 1)[None] / 255
    colours = torch.full((2, 3, 224, 224), 0.5)
    small = nn.functional.interpolate(cat[..., 20:290, 100:370], (96, 96), mode="bilinear", antialias=True)[0]
    colours[0, :, :96, 128:] = small
    colours[1, :, 128:, :96] = small
    mixer = make_mixer("attentive_cutmix(model='tf_efficientnet_lite0', init='packaged')")
    mix, _ = mix_batch(mixer, unmixed(colours))
    assert_close(mix.lam, torch.full((2,), 43 / 49))
    pasted = 1 - mix.tokens((7, 7))
    assert pasted[0, 4:, :3].sum() >= 5  # of 6; where its partner has the cat
    assert pasted[1, :3, 4:].sum() >= 5
    assert guide_parameters(mixer) == 3_371_008


def test_ranks_survive_below_zero() -> None:
    class Negative(nn.Module):
        def __init__(self, output_fmt: str) -> None:
            super().__init__()
            self.output_fmt = output_fmt
            self.scale = nn.Parameter(torch.ones(()))

        def forward_features(self, images: Tensor) -> Tensor:
            features = nn.functional.avg_pool2d(images, 8) - 100
            return features if self.output_fmt == "NCHW" else features.permute(0, 2, 3, 1)

    colours = torch.rand(2, 3, 32, 32)
    guide = CNN("resnet18", "", size=0)
    expected = nn.functional.avg_pool2d(unmixed(colours).images, 8).mean(1).flatten(1).argsort(1)
    for output_fmt in ("NCHW", "NHWC"):
        guide.trunk = Negative(output_fmt)
        importance = guide(unmixed(colours)).importance
        assert importance.min() >= 0
        assert torch.equal(importance.flatten(1).argsort(1), expected)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"size.*not -1"):
        CNN("resnet18", "", size=-1)
    with pytest.raises(ValueError, match="timm has no model 'resnet1000'"):
        CNN("resnet1000", "")
    with pytest.raises(ValueError, match=r"VisionTransformer does not end with a map \(B, D, h, w\)"):
        CNN("vit_tiny_patch16_224(depth=1)", "")(unmixed(torch.rand(1, 3, 224, 224)))
