"""Labels that go elsewhere than tokens are noticed, in every way that an adapter can be wrong about places."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import timm
import torch
from timm.layers import PatchEmbed
from timm.models.resnet import BasicBlock
from timm.models.swin_transformer import SwinTransformerBlock
from timm.models.vision_transformer import Block
from torch import nn

from labelflow.adapters import swin
from labelflow.adapters.registry import MODULES
from labelflow.analysis.locality import STRAY, Locality, locality
from labelflow.flow import Labels

RESNET = {"layers": (1, 1, 1, 1), "channels": (16, 24, 32, 32), "stem_width": 16}
SWIN = {"img_size": 112, "patch_size": 4, "window_size": 7, "embed_dim": 8, "depths": (3, 1), "num_heads": (2, 4)}
VIT = {"img_size": 112, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 3}
MODELS = {
    "resnet18": RESNET,
    "swin_tiny_patch4_window7_224": SWIN,
    "vit_tiny_patch16_224": VIT,
    "vgg11": {"mlp_ratio": 0.02},
}


def measured(name: str) -> Locality:
    torch.manual_seed(0)
    return locality(timm.create_model(name, **MODELS[name]), (112, 112))


@pytest.fixture(autouse=True)
def _adapters() -> Iterator[None]:
    before = dict(MODULES)
    yield
    MODULES.update(before)


def change(kind: type[nn.Module], wrong: Callable[[Labels], Labels]) -> None:
    """What an adapter returns, made wrong."""
    adapter = MODULES[kind]
    MODULES[kind] = replace(adapter, move=lambda module, seen, labels: wrong(adapter.move(module, seen, labels)))


@pytest.mark.parametrize("name", MODELS)
def test_labels_go_where_tokens_go(name: str) -> None:
    found = measured(name)
    assert found.passed
    assert found.stray < STRAY / 10
    assert found.agreement > 0.6


WRONG: dict[str, Callable[[Labels], Labels]] = {
    "one cell copied everywhere": lambda labels: labels.with_map(labels.map[:, :1, :1].expand_as(labels.map)),
    "the mean everywhere": lambda labels: labels.with_map(labels.map.mean((1, 2), keepdim=True).expand_as(labels.map)),
    "transposed": lambda labels: labels.with_map(labels.map.transpose(1, 2)),
    "mirrored": lambda labels: labels.with_map(labels.map.flip(2)),
    "a corner enlarged, as if there were no stride": lambda labels: labels.with_map(
        labels.map[:, : labels.grid[0] // 2, : labels.grid[1] // 2].repeat_interleave(2, 1).repeat_interleave(2, 2)
        if labels.grid[0] % 2 == 0 else labels.map.roll(3, 1)
    ),
}  # fmt: skip
KINDS = [
    ("resnet18", BasicBlock),
    ("swin_tiny_patch4_window7_224", SwinTransformerBlock),
    ("vit_tiny_patch16_224", Block),
    ("vit_tiny_patch16_224", PatchEmbed),
    ("vgg11", nn.Conv2d),
]


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_wrong_labels_are_noticed(name: str, kind: type[nn.Module], wrong: str) -> None:
    change(kind, WRONG[wrong])
    assert not measured(name).passed


@pytest.mark.parametrize("name", ["resnet18", "swin_tiny_patch4_window7_224"])
def test_labels_that_are_one_place_off_are_noticed(name: str) -> None:
    kind = dict(KINDS)[name]
    change(kind, lambda labels: labels.with_map(labels.map.roll(1, 2)))
    assert measured(name).stray > STRAY


def test_a_window_that_is_shifted_by_one_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    mix = swin.windows.mix
    monkeypatch.setattr(
        swin.windows,
        "mix",
        lambda labels, window, shift, move: mix(
            labels, window, (shift[0], shift[1] + 1) if any(shift) else shift, move
        ),
    )
    assert measured("swin_tiny_patch4_window7_224").stray > STRAY


def test_a_larger_kernel_than_the_models_is_noticed() -> None:
    def spread(labels: Labels) -> Labels:
        wide = nn.functional.avg_pool2d(labels.map.permute(0, 3, 1, 2), 5, 1, 2, count_include_pad=False)
        return labels.with_map(wide.permute(0, 2, 3, 1))

    change(BasicBlock, spread)
    assert measured("resnet18").stray > STRAY
