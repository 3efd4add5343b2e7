"""DeiT III's released commands (its README_revenge.md), restated, and what its labels of 0 and 1 do to shares."""

from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState
from safetensors.torch import load_file
from timm.layers import DropPath, resample_abs_pos_embed
from timm.models.vision_transformer import LayerScale
from torch.testing import assert_close

from labelflow import Mix
from labelflow.chance import generator
from labelflow.data import Batch
from labelflow.engine.optim import make_optimizer
from labelflow.loss import total
from labelflow.recipes import find
from labelflow.tasks import Classification, Recipe, train_run

# size, learning rate, drop-path, total batch of --batch × --gpu × --node
FIRST = {
    "deit3_small": (224, 4e-3, 0.05, 256 * 8),
    "deit3_base": (192, 3e-3, 0.2, 256 * 8),
    "deit3_large": (192, 3e-3, 0.45, 64 * 8 * 4),
}
TOP1 = {"deit3_small": 81.4, "deit3_base_224": 83.8, "deit3_large_224": 84.9}
SMALL = {"source": "world(train=24, val=8)", "workers": 0, "batch": 8, "micro_batch": 4, "epochs": 1, "repeats": 1}


def smaller(name: str, image_size: int = 32, **changes: object) -> Recipe:
    recipe = find(name).recipe
    model = recipe.model.replace("(", "(patch_size=8, embed_dim=24, depth=3, num_heads=3, ")
    return recipe.change(model=model, init="", image_size=image_size, warmup_epochs=0, **{**SMALL, **changes})


@pytest.mark.parametrize("name", FIRST)
def test_the_first_stage(name: str) -> None:
    """--epochs 800 --weight-decay 0.05 --reprob 0 --smoothing 0 --warmup-epochs 5 --opt fusedlamb --warmup-lr 1e-6
    --mixup .8 --cutmix 1.0 --unscale-lr --repeated-aug --bce-loss --color-jitter 0.3 --ThreeAugment"""
    recipe = find(name).recipe
    data, training = recipe.data, recipe.training
    assert (data.image_size, training.scaled_lr, recipe.drop_path, training.batch) == FIRST[name]
    assert (training.epochs, training.weight_decay, training.optimizer) == (800, 0.05, "lamb")
    assert (training.warmup_epochs, training.warmup_lr, training.min_lr, training.clip) == (5, 1e-6, 1e-5, 0)
    assert (data.auto_augment, data.color_jitter, data.erasing, data.repeats) == ("3a", 0.3, 0.0, 3)
    assert (data.scale, data.crop, data.test_crop) == ((0.08, 1.0), "resized", 1.0)
    assert (recipe.loss, recipe.smoothing, recipe.target) == ("bce(threshold=0)", 0.0, "plain")
    assert recipe.mixer == "0.5*mixup(alpha=0.8) + 0.5*cutmix(alpha=1.0)"
    assert find(name).aim == TOP1.get(name)


@pytest.mark.parametrize("name", ["deit3_base_224", "deit3_large_224"])
def test_the_second_stage(name: str) -> None:
    """--batch 64 --gpu 8 --lr 1e-5 --epochs 20 --weight-decay 0.1 --input-size 224 --smoothing 0.1 --warmup-epochs 5
    --opt adamw --drop-path (as before) --unscale-lr --aa rand-m9-mstd0.5-inc1 --no-repeated-aug"""
    recipe, first = find(name).recipe, find(name.removesuffix("_224")).recipe
    data, training = recipe.data, recipe.training
    assert (training.epochs, training.scaled_lr, training.weight_decay, training.batch) == (20, 1e-5, 0.1, 512)
    assert (training.optimizer, training.warmup_epochs, data.repeats, data.image_size) == ("adamw", 5, 1, 224)
    assert (recipe.loss, recipe.smoothing, data.auto_augment) == ("ce", 0.1, "rand-m9-mstd0.5-inc1")
    assert (recipe.model, recipe.mixer, recipe.drop_path) == (first.model, first.mixer, first.drop_path)
    assert recipe.init == f"runs/{name.removesuffix('_224')}"
    assert find(name).aim == TOP1[name]


@pytest.mark.parametrize("name", ["deit3_small", "deit3_base", "deit3_large", "deit3_base_224", "deit3_large_224"])
def test_tl_align_has_soft_labels(name: str) -> None:
    plain = find(name).recipe
    parts = name.removeprefix("deit3_").split("_")
    recipe = find("_".join(["deit3", parts[0], "tl_align", *parts[1:]])).recipe
    assert (recipe.target, recipe.mixer) == ("tl_align", "cutmix(alpha=1.0)")
    assert recipe.loss == ("ce" if name.endswith("_224") else "bce")
    assert not recipe.init or recipe.init == f"runs/deit3_{parts[0]}_tl_align"
    same = {"target": plain.target, "mixer": plain.mixer, "loss": plain.loss, "init": plain.init}
    assert recipe.change(**same) == plain


def test_the_model_and_its_optimizer() -> None:
    """LayerScale of 1e-4, the same drop-path everywhere, and LAMB that clips the gradient's norm at 1 by itself."""
    recipe = smaller("deit3_small")
    task = Classification(recipe)
    scales = [module.gamma for module in task.student.modules() if isinstance(module, LayerScale)]
    assert len(scales) == 6
    assert all((scale == 1e-4).all() for scale in scales)
    assert [m.drop_prob for m in task.student.modules() if isinstance(m, DropPath)] == [0.05] * 6
    assert make_optimizer(task.student, recipe.training).defaults["max_grad_norm"] == 1.0


@pytest.mark.parametrize(
    ("target", "loss", "matters"),
    [
        ("plain", "bce(threshold=0)", False),  # with tl_align it is refused
        ("plain", "bce", True),
        ("tl_align", "bce", True),
        ("plain", "ce", True),
        ("tl_align", "ce", True),
    ],
)
def test_where_labels_are_0_or_1_the_share_makes_no_difference(target: str, loss: str, matters: bool) -> None:
    """The same images, pasted by another λ: what a share of one's own label does to the loss. Both classes are there
    in full under threshold=0, however much of them; with soft labels the share counts."""
    task = Classification(smaller("deit3_small", target=target, loss=loss, mixer="cutmix(alpha=1.0)"))
    output = task.student.eval()
    images, labels = torch.rand(4, 3, 32, 32, generator=generator(0)), torch.tensor([0, 1, 2, 3])
    found = []
    for weight in (0.2, 0.8):
        mixer = _Constant(weight)
        batch = Batch(images, labels, torch.ones(4), [])
        found.append(total(task._step(lambda _, mix: output(images, mix), batch, generator(0), mixer)[0]))
    assert torch.equal(*found) != matters


class _Constant:
    """MixUp with this λ; its images are looked at unmixed, so that only labels differ."""

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def __call__(self, images: torch.Tensor, generator: object = None) -> Mix:
        return Mix(torch.tensor([3, 2, 1, 0]), torch.full((4, 1, 32, 32), self.weight))


def test_the_second_stage_starts_from_the_first(tmp_path: Path) -> None:
    """Its weights at a smaller size, with position embeddings interpolated."""
    AcceleratorState._reset_state(reset_partial_state=True)
    train_run(smaller("deit3_base", 24), tmp_path / "first", resume=False)
    later = Classification(smaller("deit3_base_224").change(init=str(tmp_path / "first")))
    weights = later.student.model.state_dict()
    first = load_file(tmp_path / "first" / "model.safetensors")
    for name, value in weights.items():
        expected = resample_abs_pos_embed(first[name], [4, 4], [3, 3], 0) if name == "pos_embed" else first[name]
        assert_close(value, expected)
