"""Recipes for fine-tuning: the values that they are to have, and the weights that timm has for them."""

from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from labelflow.align import evaluating
from labelflow.mixers import make_mixer
from labelflow.models.create import create
from labelflow.recipes import find
from labelflow.recipes.finetuning import ENTRIES
from labelflow.spec import build
from labelflow.targets import TARGETS
from labelflow.tasks.checks import check_colours
from labelflow.tasks.classify import model_arguments

# methods_new.md, 11: layer decay, image size
VALUES = {
    "finetune_vit_small": ("vit_small_patch16_224.augreg_in21k_ft_in1k", 0.75, 224),
    "finetune_vit_base": ("vit_base_patch16_224.augreg2_in21k_ft_in1k", 0.75, 224),
    "finetune_swin_tiny": ("swin_tiny_patch4_window7_224.ms_in1k", 0.85, 224),
    "finetune_dinov2_small": ("vit_small_patch14_dinov2.lvd142m", 0.65, 224),
    "finetune_dinov3_small": ("vit_small_patch16_dinov3.lvd1689m", 0.65, 256),
}


@pytest.mark.parametrize("name", VALUES)
def test_the_usual_values(name: str) -> None:
    aligned, plain = (find(f"{name}_{method}").recipe for method in ("tl_align", "cutmix"))
    assert aligned.change(target="plain") == plain
    training = plain.training
    assert (plain.model, training.layer_decay, plain.data.image_size) == VALUES[name]
    assert (training.optimizer, training.epochs, training.warmup_epochs) == ("adamw", 50, 5)
    assert (training.batch, training.scaled_lr, training.weight_decay, training.min_lr) == (128, 1e-4, 0.05, 1e-6)
    assert (plain.drop_path, plain.smoothing, plain.mixer) == (0.1, 0.1, "cutmix(alpha=1.0)")


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_timm_has_weights_that_see_images_so(entry: object) -> None:
    recipe = entry.recipe  # type: ignore[attr-defined]
    cfg = timm.get_pretrained_cfg(recipe.model)
    assert cfg is not None
    assert cfg.has_weights
    assert recipe.init == "pretrained"
    check_colours(recipe.model, recipe.init, recipe.data.mean, recipe.data.std)
    if cfg.crop_pct == 1.0:
        assert recipe.data.test_crop == 1.0


@pytest.mark.parametrize("name", ["finetune_dinov2_small_tl_align", "finetune_dinov3_small_tl_align"])
def test_labels_follow_dinos_tokens_at_full_size(name: str) -> None:
    recipe = find(name).recipe
    model, arguments = model_arguments(recipe, 3)
    student = build(recipe.target, TARGETS, "target").student(create(model, **arguments))
    images = torch.rand(2, 3, recipe.data.image_size, recipe.data.image_size)
    mix = make_mixer(recipe.mixer)(images, torch.Generator().manual_seed(0))
    with torch.no_grad(), evaluating(student):
        output = student(mix.apply(images), mix)
    assert output.logits.shape == (2, 3)
    assert ((output.flow.heads >= 0) & (output.flow.heads <= 1)).all()
    torch.testing.assert_close(output.flow.heads.sum(-1), torch.ones_like(output.flow.heads[..., 0]))


def test_weights_without_a_classifier_for_larger_images(tmp_path: Path) -> None:
    """As DINOv2's are: 37×37 positions, of which 16×16 are made, and no classifier."""
    small = "vit_small_patch14_dinov2(embed_dim=24, depth=1, num_heads=3)"
    weights = create(small, img_size=518, num_classes=0).state_dict()
    save_file(weights, tmp_path / "dino.safetensors")
    model = create(small, str(tmp_path / "dino.safetensors"), img_size=224, num_classes=3)
    found = model.state_dict()
    assert found["pos_embed"].shape == (1, 257, 24)
    assert found["head.weight"].shape == (3, 24)
    assert torch.equal(found["blocks.0.attn.qkv.weight"], weights["blocks.0.attn.qkv.weight"])


def test_a_probe_s_settings() -> None:
    recipe = find("finetune_dinov2_small_probe").recipe
    assert (recipe.training.freeze, recipe.mixer, recipe.target) == (("backbone",), "none", "plain")
    assert (recipe.training.weight_decay, recipe.drop_path, recipe.smoothing) == (0, 0, 0)
