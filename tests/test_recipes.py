"""Recipes against the papers' tables, and each for one real step."""

import math
from pathlib import Path

import numpy as np
import pytest
import timm
import torch

from labelflow.chance import generator
from labelflow.data import Data, open_source
from labelflow.data.batches import check_micro_batches
from labelflow.engine.optim import make_optimizer, make_schedule
from labelflow.labels import Draft, Manifest
from labelflow.loss import total
from labelflow.mixers import Choose, CutMix, MixUp, make_mixer
from labelflow.models.create import create
from labelflow.recipes import RECIPES, find
from labelflow.settings import differences
from labelflow.spec import parse
from labelflow.tasks import Classification, Recipe, SegmentRecipe

# TL-Align, Table 9: epochs, warm-up, LR, weight decay, EMA decay, MixUp, CutMix, switch probability, erasing, top-1
TABLE_9 = {
    "deit_small_vanilla": (300, 5, 0.0005, 0.05, 0, 0.0, 0.0, None, True, 76.4),
    "deit_small": (300, 5, 0.0005, 0.05, 0, 0.8, 1.0, 0.5, True, 79.8),
    "deit_small_310": (310, 20, 0.001, 0.03, 0.99996, 0.8, 1.0, 0.8, False, 80.3),
    "deit_small_310_transmix": (310, 20, 0.001, 0.03, 0.99996, 0.8, 1.0, 0.8, False, 80.7),
    "deit_small_cutmix": (300, 5, 0.0005, 0.05, 0, 0.0, 1.0, None, True, 79.8),
    "deit_small_transmix": (300, 5, 0.0005, 0.05, 0, 0.0, 1.0, None, True, 80.1),
    "deit_small_tl_align": (300, 5, 0.0005, 0.05, 0, 0.0, 1.0, None, True, 80.6),
}


def alphas(mixer: object) -> tuple[float, float, float | None]:
    """MixUp's α, CutMix's α, and the probability of the second."""
    parts = getattr(mixer, "mixers", [mixer])
    found = {type(part): part.alpha for part in parts if hasattr(part, "alpha")}
    switch = mixer.probabilities[1] if len(parts) > 1 else None
    return found.get(MixUp, 0.0), found.get(CutMix, 0.0), switch


@pytest.mark.parametrize("name", TABLE_9)
def test_table_9(name: str) -> None:
    entry = find(name)
    training = entry.recipe.training
    mixup, cutmix, switch = alphas(make_mixer(entry.recipe.mixer))
    epochs = training.epochs + training.cooldown_epochs
    found = (epochs, training.warmup_epochs, training.lr, training.weight_decay, training.ema, mixup, cutmix, switch)
    assert (*found, entry.recipe.data.erasing > 0, entry.aim) == TABLE_9[name]
    assert "9" in entry.paper
    expected = next((target for target in ("transmix", "tl_align") if name.endswith(target)), "plain")
    assert entry.recipe.target == expected
    # 0.0005 stands for 512 images, 0.001 for the batch of 256 as it is
    assert training.scaled_lr == 1e-3


# TL-Align, Tables 1, 2, 7 and 8: top-1 without and with TL-Align
TABLE_1 = {
    "deit_tiny": (72.2, 73.2),
    "pvt_tiny": (75.1, 75.5),
    "deit_small": (79.8, 80.6),
    "pvt_small": (79.8, 80.4),
    "swin_tiny": (81.2, 81.4),
    "swin_small": (83.0, 83.4),
    "deit_base": (81.8, 82.3),
    "swin_base": (83.5, 83.7),
}
TABLE_2 = {
    "deit_small_vanilla": 76.4,
    "deit_small_cutmix": 79.8,
    "deit_small_puzzlemix": 79.8,
    "deit_small_saliencymix": 79.2,
    "deit_small_attentive_cutmix": 77.5,
    "deit_small_transmix": 80.1,
    "deit_small_tl_align": 80.6,
}
TABLE_7 = {
    "deit_small_vanilla": 76.4,
    "deit_small_cutmix": 79.8,
    "deit_small_tl_align": 80.6,
    "deit_small": 79.8,
    "deit_small_mixup_cutmix_tl_align": 80.2,
    "deit_small_random": 79.7,
    "deit_small_random_tl_align": 80.2,
    "deit_small_block": 80.0,
    "deit_small_block_tl_align": 80.3,
}
TABLE_8 = {
    "deit_small": 79.8,
    "deit_small_tl_align_layer_12": 80.1,
    "deit_small_tl_align_layers_2_4_6_8": 80.2,
    "deit_small_tl_align_no_norm": 80.3,
    "deit_small_tl_align": 80.6,
}


def test_tables_1_2_7_and_8_have_their_rows() -> None:
    for name, (plain, aligned) in TABLE_1.items():
        assert (find(name).aim, find(f"{name}_tl_align").aim) == (plain, aligned)
        assert "1" in find(name).paper
    for number, table in ((2, TABLE_2), (7, TABLE_7), (8, TABLE_8)):
        for name, top1 in table.items():
            assert find(name).aim == top1
            assert str(number) in find(name).paper, name


def test_table_5_has_its_24_rows() -> None:
    rows = {name: entry for name, entry in RECIPES.items() if entry.paper == "TL-Align, Table 5"}
    assert len(rows) == 24
    assert rows["deit_base_cars_tl_align"].aim == 93.0
    assert rows["deit_tiny_cifar100"].aim == 85.7
    settings = rows["deit_small_flowers"].recipe.training
    assert (settings.optimizer, settings.scaled_lr, settings.weight_decay, settings.batch) == ("sgd", 0.01, 1e-4, 768)


def test_base_models_are_fine_tuned() -> None:
    for name in ("deit_base_tl_align", "swin_base_tl_align"):
        recipe = find(name).recipe
        training = recipe.training
        assert (training.epochs, training.scaled_lr, training.schedule, training.weight_decay) == (
            40,
            1e-5,
            "constant",
            1e-8,
        )
        assert recipe.init == "pretrained"


def test_every_recipe_says_where_it_comes_from() -> None:
    for entry in RECIPES.values():
        assert entry.about
        assert not entry.parent or entry.parent in RECIPES, entry.name
        assert entry.source or (entry.aim is None and not entry.paper), entry.name
        assert f"labelflow train {entry.name}" in entry.command
        check_micro_batches(entry.recipe.training.batch, entry.recipe.training.micro_batch, entry.gpus)


def test_distilled_deits_are_deit_s_with_its_teacher() -> None:
    """README_deit.md: hard, RegNetY-16GF; 74.5, 81.2 and 83.4."""
    for size, aim in (("tiny", 74.5), ("small", 81.2), ("base", 83.4)):
        entry = find(f"deit_{size}_distilled")
        plain = find(f"deit_{size}").recipe
        assert entry.aim == aim
        changed = {name for name, _, _ in differences(plain, entry.recipe)}
        assert changed == {"model", "target", "teacher", "teacher_size"}
        assert entry.recipe.teacher_size == entry.recipe.data.image_size == 224
        assert parse(entry.recipe.target).arguments == {"kind": "hard", "alpha": 0.5}
        assert timm.get_pretrained_cfg(entry.recipe.teacher).has_weights
    aligned = find("deit_small_distilled_tl_align").recipe
    assert (aligned.mixer, aligned.teacher) == ("cutmix(alpha=1.0)", find("deit_small_distilled").recipe.teacher)


def test_tome_is_deit_with_merged_tokens() -> None:
    """Trained with r = 13 from the start: 71.27 and 79.36."""
    for size, aim in (("tiny", 71.27), ("small", 79.36)):
        entry, aligned = find(f"deit_{size}_tome"), find(f"deit_{size}_tome_tl_align").recipe
        assert entry.aim == aim
        assert {name for name, _, _ in differences(find(f"deit_{size}").recipe, entry.recipe)} == {"model"}
        assert parse(entry.recipe.model) == (f"deit_{size}_patch16_224", {"merge_tokens": 13})
        assert {name for name, _, _ in differences(entry.recipe, aligned)} == {"mixer", "target"}


def test_mixpro_is_a_deit_of_patches_of_14_trained_as_swins_are() -> None:
    """Half of the batches MaskMix, the others timm's switch; warm-up 20, clipping at 5, a rate of 1e-3; 73.8."""
    entry = find("deit_tiny_mixpro")
    recipe, training = entry.recipe, entry.recipe.training
    assert (recipe.model, entry.aim) == ("deit_tiny_patch16_224(patch_size=14)", 73.8)
    assert (training.warmup_epochs, training.clip, training.scaled_lr) == (20, 5.0, 1e-3)
    mixer = make_mixer(recipe.mixer)
    assert isinstance(mixer, Choose)
    assert mixer.probabilities == [0.25, 0.25, 0.5]
    assert [vars(one).get("patch") for one in mixer.mixers] == [None, None, 14]
    assert alphas(mixer)[:2] == (0.8, 1.0)
    assert (recipe.target, recipe.smoothing) == ("pal", 0.0)


# STL's scripts, of FAN-Hybrid-T, -S, -B and -L: parameters in millions, drop-path, batch, learning rate, warm-up
FAN = {
    "tiny_12": (8.0, 0.05, 1024, 2e-3, 5),
    "small_12": (26.5, 0.25, 1024, 2e-3, 5),
    "small_24": (50.9, 0.35, 2048, 4e-3, 10),
    "medium_24": (77.3, 0.45, 2048, 4e-3, 10),
}


@pytest.mark.parametrize("size", FAN)
def test_both_stages_of_stl_are_trained_alike(size: str) -> None:
    labeller, taught = (find(f"xcit_{size}_stl{stage}") for stage in ("_labeler", ""))
    recipe, training = labeller.recipe, labeller.recipe.training
    millions, *settings = FAN[size]
    assert [recipe.drop_path, training.batch, training.scaled_lr, training.warmup_epochs] == settings
    assert (training.epochs, training.min_lr, training.warmup_lr, training.ema) == (350, 1e-6, 1e-6, 0.99992)
    assert (training.optimizer, training.schedule, training.weight_decay) == ("adamw", "cosine", 0.05)
    assert (recipe.data.auto_augment, recipe.data.erasing, recipe.smoothing) == ("rand-m9-mstd0.5-inc1", 0.3, 0.1)
    assert alphas(make_mixer(recipe.mixer)) == (0.8, 1.0, 0.5)
    assert (recipe.target, taught.recipe.target) == ("stl_labeler", "stl")
    assert {name for name, _, _ in differences(recipe, taught.recipe)} == {"target", "teacher"}
    with torch.device("meta"):
        parameters = sum(parameter.numel() for parameter in timm.create_model(recipe.model).parameters())
    assert 0.8 < parameters / (1e6 * millions) < 1.1  # of another model, in its role
    assert labeller.aim is None
    assert "timm has no FAN" in labeller.source
    assert not timm.list_models("*fan*")


def test_swin_starts_from_imagenet_1k() -> None:
    assert timm.get_pretrained_cfg(find("swin_base_tl_align").recipe.model).tag == "ms_in1k"


WORLD = "world(train=24, val=8)"
VIT = {"patch_size": 8, "embed_dim": 24, "depth": 12, "num_heads": 3}
LVVIT = {"embed_dim": 24, "depth": 2, "num_heads": 3, "stem_width": 8}
SMALLER: dict[str, dict] = {
    "deit": VIT,
    "deit3": {**VIT, "depth": 2},
    "vit": {**VIT, "depth": 2},
    "swin": {"patch_size": 4, "window_size": 2, "embed_dim": 8, "depths": (2, 2), "num_heads": (2, 4)},
    "pvt": {"embed_dims": (8, 16, 24, 32), "num_heads": (1, 2, 3, 4), "depths": (1, 1, 1, 1)},
    "cait": {**VIT, "patch_size": 8, "depth": 2},
    "lvvit": LVVIT,
    "lv": LVVIT,
    "t2t": {"token_dim": 8, "embed_dim": 24, "depth": 2, "num_heads": 3},
    "mixer": {"mlp_ratio": (0.1, 0.1)},  # timm sets its width and depth
    "resnest50d": {"layers": (1, 1, 1, 1), "base_width": 8},
    "xcit": {"embed_dim": 24, "depth": 2, "num_heads": 3, "patch_size": 8},
}


SMALL_CNN = "attentive_cutmix(model='resnet18', init='', size=32)"  # nothing is downloaded


def smaller(recipe: Recipe, labels: Path, teacher: str) -> Recipe:
    """The same at a size for a test: only the model, the data and the batch shrink."""
    name, arguments = parse(recipe.model)
    arguments |= SMALLER[name.split("_")[0]]
    image_size = 64 if name.startswith(("pvt", "resnest")) else 32
    return recipe.change(
        model=f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})",
        init="",
        source=WORLD,
        labels=str(labels) if recipe.data.labels else "",
        image_size=image_size,
        sizes=tuple(size * image_size // recipe.data.image_size for size in recipe.data.sizes),
        teacher=teacher if recipe.teacher else "",
        teacher_size=32 if recipe.teacher else 0,
        workers=0,
        batch=8,
        micro_batch=4,
        mixer=recipe.mixer.replace("patch=16", "patch=8").replace("attentive_cutmix", SMALL_CNN),
    )


@pytest.fixture(scope="session")
def labels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random label maps of the world's training part."""
    source = open_source(Data(source=WORLD), "train")
    classes = tuple(source.classes)
    manifest = Manifest("noise", "", 64, "whole", "rest", (4, 4), k=3, classes=classes, samples=len(source))
    draft = Draft(tmp_path_factory.mktemp("labels") / "store", manifest, [source.key(i) for i in range(len(source))])
    random = np.random.default_rng(0)
    shape = (len(source), manifest.k, *manifest.grid)
    draft.write(0, 4 * random.random(shape), random.integers(0, len(classes), shape))
    return draft.finish().folder


@pytest.fixture(scope="session")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small CNN with random weights, for the world's ten classes."""
    file = tmp_path_factory.mktemp("teacher") / "weights.pth"
    torch.save(timm.create_model("test_resnet", num_classes=10).state_dict(), file)
    return f"test_resnet={file}"


@pytest.fixture(scope="session")
def labeller(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small LV-ViT with random weights, for the tokens of the world's ten classes."""
    file = tmp_path_factory.mktemp("labeller") / "weights.pth"
    torch.save(create("lvvit_t", num_classes=10, img_size=32, **LVVIT).state_dict(), file)
    return f"lvvit_t({', '.join(f'{key}={value}' for key, value in LVVIT.items())}, img_size=32)={file}"


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_takes_a_real_step(name: str, labels: Path, teacher: str, labeller: str) -> None:
    entry = find(name)
    recipe = smaller(entry.recipe, labels, labeller if entry.recipe.target == "stl" else teacher)
    task = Classification(recipe)
    optimizer = make_optimizer(task.student, recipe.training)
    schedule = make_schedule(optimizer, recipe.training, 3)
    schedule(3 * max(2, recipe.training.warmup_epochs))
    before = [parameter.detach().clone() for parameter in task.student.parameters()]
    for read in list(task.train_batches(updates=1, first_update=0, rank=0, processes=1)):
        loss = total(task.terms(task.student.train(), read.to(torch.device("cpu")), generator(0)))
        loss.backward()
    assert loss.isfinite()
    optimizer.step()
    after = list(task.student.parameters())
    assert any(not torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_a_change_goes_where_it_belongs() -> None:
    changed = Recipe().change(lr=0.1, erasing=0.5, target="plain")
    assert (changed.training.lr, changed.data.erasing, changed.target) == (0.1, 0.5, "plain")
    with pytest.raises(ValueError, match=r"there is no setting 'epohcs'; did you mean epochs\?"):
        Recipe().change(epohcs=1)
    with pytest.raises(ValueError, match="there is no setting 'heads'"):
        SegmentRecipe().change(heads=1)


@pytest.mark.parametrize(
    ("setting", "wrong", "right"),
    [
        ("drop_path", (-0.1, 1.0), (0.0, 0.99)),
        ("smoothing", (-0.1, 1.0), (0.0, 0.99)),
        ("scale", ((0.0, 1.0), (0.5, 0.4), (0.5, 1.1)), ((0.08, 1.0), (1.0, 1.0))),
        ("ratio", ((0.0, 1.0), (2.0, 1.0)), ((1.0, 1.0), (0.5, 2.0))),
        ("std", ((1.0, 1.0, 0.0),), ((0.5, 0.5, 0.5),)),
        ("erasing", (-0.1, 1.1), (0.0, 1.0)),
        ("skip_unreadable", (-1,), (0, 5)),
        ("color_jitter", (-0.1,), (0.0, 1.5)),
        ("workers", (-2,), (-1, 0)),
        ("warmup_epochs", (-1,), (0, 300)),
        ("momentum", (-0.1, math.nan), (0.0,)),
    ],
)
def test_settings_have_ranges(setting: str, wrong: tuple, right: tuple) -> None:
    for value in right:
        Recipe().change(**{setting: value})
    for value in wrong:
        with pytest.raises(ValueError, match=setting):
            Recipe().change(**{setting: value})
