"""Models at other sizes than they were made for, and stochastic depth that is the same everywhere."""

import pytest
import timm
import torch
from timm.layers import DropPath, resample_abs_pos_embed
from torch import nn
from torch.testing import assert_close

import labelflow as lf
from helpers import sharpen
from labelflow.models import variants
from labelflow.models.create import create
from labelflow.models.variants import create_for_any_size, drop_paths_evenly
from labelflow.spec import parse

VIT = "vit_tiny_patch16_224(patch_size=8, embed_dim=24, depth=2, num_heads=3)"
DEIT3 = "deit3_small_patch16_224(patch_size=8, embed_dim=24, depth=2, num_heads=3)"
DISTILLED = "deit_tiny_distilled_patch16_224(patch_size=8, embed_dim=24, depth=2, num_heads=3)"
SWIN = "swin_tiny_patch4_window7_224(embed_dim=16, depths=(2, 2), num_heads=(1, 2), window_size=4)"
LVVIT = "lvvit_t(embed_dim=24, depth=2, num_heads=3, stem_width=8)"


def made(model: str, size: int, any_size: bool = True) -> nn.Module:
    torch.manual_seed(0)
    make = create_for_any_size if any_size else create
    return sharpen(make(model, img_size=size, num_classes=5)).eval()


def images_of(size: int) -> torch.Tensor:
    return torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(size))


@pytest.mark.parametrize("model", [VIT, DEIT3, DISTILLED, SWIN, LVVIT])
def test_at_its_own_size_it_is_the_model_as_ever(model: str) -> None:
    plain, any_size = made(model, 64, any_size=False), made(model, 64)
    assert plain.state_dict().keys() == any_size.state_dict().keys()
    assert all(torch.equal(plain.state_dict()[name], value) for name, value in any_size.state_dict().items())
    assert torch.equal(any_size(images_of(64)), plain(images_of(64)))
    with pytest.raises(Exception, match=r"."):
        plain(images_of(32))


@pytest.mark.parametrize("model", ["test_resnet", "cait_xxs24_224(embed_dim=24, depth=1, num_heads=2)"])
def test_models_without_the_argument_start_from_the_same_random_weights(model: str) -> None:
    torch.manual_seed(3)
    expected = create(model, num_classes=5).state_dict()
    torch.manual_seed(3)
    found = create_for_any_size(model, num_classes=5).state_dict()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_a_model_that_refuses_late_starts_from_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def fussy(model: str, init: str = "", **arguments: object) -> nn.Module:
        made = nn.Linear(3, 2)
        if arguments:
            raise ValueError("no such argument")
        return made

    monkeypatch.setattr(variants, "create", fussy)
    torch.manual_seed(3)
    expected = fussy("any").weight
    torch.manual_seed(3)
    assert torch.equal(create_for_any_size("any").weight, expected)


def test_what_is_wrong_with_a_model_is_said_as_ever() -> None:
    with pytest.raises(ValueError, match="timm has no model 'vit_tinny'"):
        create_for_any_size("vit_tinny")
    with pytest.raises(ValueError, match="unexpected keyword argument 'widht'"):
        create_for_any_size("vit_tiny_patch16_224(widht=3)")


@pytest.mark.parametrize("size", [32, 48, 64])
@pytest.mark.parametrize("model", [VIT, DEIT3, DISTILLED, LVVIT])
def test_labels_flow_as_in_a_model_made_for_that_size(model: str, size: int) -> None:
    """Whose position embeddings timm has interpolated once and for all: the same logits and aligned labels."""
    any_size, own = made(model, 64), made(model, size, any_size=False)
    state = any_size.state_dict()
    prefix = 0 if own.no_embed_class else own.num_prefix_tokens
    positions = resample_abs_pos_embed(
        state["pos_embed"],
        new_size=own.patch_embed.grid_size,
        old_size=(64 // own.patch_embed.patch_size[0],) * 2,
        num_prefix_tokens=prefix,
    )
    own.load_state_dict({**state, "pos_embed": positions})
    images = images_of(size)
    mix = lf.CutMix(per="sample")(images, torch.Generator().manual_seed(1))
    found, expected = (lf.Aligned(one)(mix.apply(images), mix.share) for one in (any_size, own))
    assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert (found[1] - mix.lam).abs().max() > 1e-3  # the labels have moved


@pytest.mark.parametrize("size", [32, 48, 64])
def test_a_swin_masks_its_windows_at_every_size(size: int) -> None:
    """As timm's own with dynamic_img_size; and logits and labels as those of a model made for that size, unless that
    one's windows are its whole map, and so are not shifted."""
    name, arguments = parse(SWIN)
    any_size, images = made(SWIN, 64), images_of(size)
    dynamic = timm.create_model(name, img_size=64, num_classes=5, dynamic_img_size=True, **arguments).eval()
    dynamic.load_state_dict(any_size.state_dict())
    assert torch.equal(any_size(images), dynamic(images))
    if size == 32:
        return
    own = made(SWIN, size, any_size=False)
    own.load_state_dict(any_size.state_dict())
    mix = lf.CutMix(per="sample")(images, torch.Generator().manual_seed(1))
    found, expected = (lf.Aligned(one)(mix.apply(images), mix.share) for one in (any_size, own))
    assert_close(found, expected, atol=1e-5, rtol=1e-5)


EVERYWHERE = {  # how many paths there are to drop
    VIT: 4,
    SWIN: 8,
    LVVIT: 4,
    "pvt_tiny(embed_dims=(8, 8, 8, 8), num_heads=(1, 1, 1, 1), depths=(1, 2, 1, 1))": 5,
    "cait_xxs24_224(embed_dim=24, depth=2, num_heads=2)": 4,
    "resnet18": 8,
    "convnext_atto(depths=(1, 1, 2, 1), dims=(8, 8, 8, 8))": 5,
    "efficientnet_b0": 16,
}


def rates(model: nn.Module) -> list[float]:
    return [module.drop_prob for module in model.modules() if isinstance(module, DropPath)]


@pytest.mark.parametrize("model", EVERYWHERE)
def test_the_same_rate_in_all_blocks(model: str) -> None:
    made, expected = create(model, drop_path_rate=0.2, num_classes=5), [0.2] * EVERYWHERE[model]
    names = [name for name, _ in made.named_parameters()]
    assert rates(made) != pytest.approx(expected)  # timm's own grow; those of a CaiT's class attention are 0
    drop_paths_evenly(made, 0.2)
    assert rates(made) == expected
    assert [name for name, _ in made.named_parameters()] == names


def test_the_first_block_is_left_out_as_often_as_the_last() -> None:
    model = create(VIT, drop_path_rate=0.5)
    tokens = torch.randn(400, 4, 24)
    drop_paths_evenly(model, 0.5)
    for block in model.train().blocks:
        unchanged = (block(tokens) == tokens).all(2).all(1).float().mean()
        assert 0.18 < unchanged < 0.32  # both of its halves are left out


def test_a_model_without_paths_to_drop() -> None:
    with pytest.raises(ValueError, match="Sequential has no stochastic depth"):
        drop_paths_evenly(nn.Sequential(nn.Linear(2, 2)), 0.1)
