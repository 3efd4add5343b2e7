"""Recipes against the tables of the Token Labeling paper."""

import pytest
import torch

from labelflow.engine.optim import make_schedule
from labelflow.recipes import RECIPES, find
from labelflow.recipes.methods import METHODS, find_method
from labelflow.settings import differences
from labelflow.spec import parse

TABLE_1 = {  # top-1, image size
    "lvvit_t": (79.1, 224),
    "lvvit_s": (83.3, 224),
    "lvvit_m": (84.1, 224),
    "lvvit_l_288": (85.3, 288),
}
TABLE_2 = {  # top-1, mixer, target
    "lvvit_s": (83.3, "mixtoken", "token_label"),
    "lvvit_s_relabel_mixtoken": (83.0, "mixtoken", "relabel"),
    "lvvit_s_relabel": (82.8, "cutmix", "relabel"),
    "lvvit_s_standard_mixtoken": (82.5, "mixtoken", "plain"),
    "lvvit_s_standard": (82.4, "cutmix", "plain"),
}
TABLE_3 = {  # top-1, MixToken, MixUp, CutOut, RandAugment
    "lvvit_s": (83.3, True, False, True, True),
    "lvvit_s_no_mixtoken": (81.3, False, False, True, True),
    "lvvit_s_mixup": (83.1, True, True, True, True),
    "lvvit_s_no_cutout": (83.0, True, False, False, True),
    "lvvit_s_no_randaugment": (82.8, True, False, True, False),
}
TABLE_4 = {  # top-1, sizes in training and in the test
    "lvvit_s": (83.3, 224, 224),
    "lvvit_s_384": (84.4, 224, 384),
    "lvvit_m": (84.1, 224, 224),
    "lvvit_m_384": (85.4, 224, 384),
    "lvvit_l_288": (85.3, 288, 288),
    "lvvit_l_448_finetuned": (85.9, 288, 448),
    "lvvit_l_448": (86.2, 448, 448),
    "lvvit_l_512": (86.4, 448, 512),
}
TABLE_8 = {
    "lvvit_s_16_blocks": 81.2,
    "lvvit_s_conv1": 81.1,
    "lvvit_s_conv4": 82.2,
    "lvvit_s_standard": 82.4,
    "lvvit_s": 83.3,
    "lvvit_s_384": 84.4,
}
TABLE_9 = {"conv1": 81.1, "conv2": 81.4, "conv3_fast": 81.4, "conv3": 81.9, "conv4": 82.2, "conv6": 82.2}
TABLE_10 = {"lvvit_s_conv4": 82.2, "lvvit_s_standard": 82.4, "lvvit_s_divisor_3": 82.4}
TABLE_11 = {  # without and with token labels
    "mixer_s16": (75.6, 76.1),
    "mixer_b16": (78.3, 79.5),
    "mixer_l16": (77.7, 80.1),
    "resnest50": (80.9, 81.5),
}
FINETUNED = ["lvvit_s_384", "lvvit_m_384", "lvvit_m_448", "lvvit_l_448_finetuned", "lvvit_l_512"]


def is_row(name: str, table: int, top1: float) -> bool:
    paper, _, tables = find(name).paper.partition(", ")
    tables = tables.partition("Figure")[0]
    numbers = tables.removeprefix("Tables ").removeprefix("Table ").replace(",", "").split()
    return (paper, find(name).aim) == ("Token Labeling", top1) and str(table) in numbers


def test_table_1() -> None:
    for name, (top1, size) in TABLE_1.items():
        assert is_row(name, 1, top1)
        assert find(name).recipe.data.image_size == size


def test_table_2() -> None:
    for name, (top1, mixer, target) in TABLE_2.items():
        recipe = find(name).recipe
        assert is_row(name, 2, top1)
        assert mixer in recipe.mixer
        assert ("mixup" in recipe.mixer) == (target == "plain")  # of Table 7's columns, Standard alone has it
        assert parse(recipe.target).name == target


def test_table_3() -> None:
    for name, (top1, *used) in TABLE_3.items():
        recipe = find(name).recipe
        assert is_row(name, 3, top1)
        mixing = ["mixtoken" in recipe.mixer, "mixup" in recipe.mixer]
        assert [*mixing, recipe.data.erasing > 0, bool(recipe.data.auto_augment)] == used


def test_table_4() -> None:
    for name, (top1, trained, tested) in TABLE_4.items():
        entry = find(name)
        assert is_row(name, 4, top1)
        assert entry.recipe.data.image_size == tested
        assert find(entry.parent if name in FINETUNED else name).recipe.data.image_size == trained


def test_tables_8_to_11() -> None:
    rows = [(8, name, top1) for name, top1 in TABLE_8.items()]
    rows += [(9, f"lvvit_s_{stem}", top1) for stem, top1 in TABLE_9.items()]
    rows += [(10, name, top1) for name, top1 in TABLE_10.items()]
    for name, (plain, labelled) in TABLE_11.items():
        rows += [(11, name, plain), (11, f"{name}_token_label", labelled)]
    for table, name, top1 in rows:
        assert is_row(name, table, top1), name
    assert is_row("lvvit_m_384", 12, 85.4)


def test_the_path_of_table_8_changes_the_model_alone() -> None:
    path = [find(name).recipe for name in ("lvvit_s_16_blocks", "lvvit_s_conv1", "lvvit_s_conv4", "lvvit_s_standard")]
    assert len({recipe.model for recipe in path}) == 4
    assert len({recipe.change(model="") for recipe in path}) == 1


def test_relabel_is_smoothed_alike_everywhere() -> None:
    compared = METHODS["relabel"].of(find("small_vit_cutmix").recipe.change(labels="labels"))
    own = find_method("own=cutmix(alpha=1.0)/relabel").of(find("small_vit_cutmix").recipe)
    found = [compared, own, *(find(name).recipe for name in ("lvvit_s_relabel", "lvvit_s_relabel_mixtoken", "lvvit_s"))]
    assert {recipe.smoothing for recipe in found} == {0.1}


# learning rate at a batch of 1024, MixUp, labels
TABLE_7 = {
    "lvvit_s_standard": (1e-3, True, False),
    "lvvit_s_relabel": (1e-3, False, True),
    "lvvit_s": (1.6e-3, False, True),
}


@pytest.mark.parametrize("name", TABLE_7)
def test_table_7(name: str) -> None:
    lr, mixup, labels = TABLE_7[name]
    recipe = find(name).recipe
    data, training = recipe.data, recipe.training
    assert training.scaled_lr == pytest.approx(lr)
    assert ("mixup(alpha=0.8)" in recipe.mixer, bool(data.labels)) == (mixup, labels)
    assert (training.epochs, training.batch, training.schedule) == (300, 1024, "cosine")
    assert (training.weight_decay, training.warmup_epochs, recipe.drop_path) == (0.05, 5, 0.1)
    assert (data.erasing, data.auto_augment) == (0.25, "rand-m9-mstd0.5-inc1")
    assert is_row(name, 7, find(name).aim or 0)


def test_what_the_released_code_adds() -> None:
    for size, drop_path, crop in (("t", 0.1, 0.9), ("s", 0.1, 0.9), ("m", 0.2, 1.0), ("l_288", 0.3, 1.0)):
        recipe = find(f"lvvit_{size}").recipe
        training = recipe.training
        assert (recipe.drop_path, recipe.data.test_crop, recipe.data.interpolation) == (drop_path, crop, "random")
        assert (training.cooldown_epochs, training.min_lr, training.warmup_lr, training.ema) == (
            10,
            1e-5,
            1e-6,
            0.99992,
        )
        assert (recipe.target, recipe.mixer, recipe.smoothing) == ("token_label(beta=0.5)", "mixtoken(alpha=1.0)", 0.1)
        large = size.startswith("l")
        assert training.scaled_lr == pytest.approx(1e-3 if large else 1.6e-3)
        assert ("rand-n3" in recipe.data.auto_augment) == large


@pytest.mark.parametrize("name", FINETUNED)
def test_fine_tuning(name: str) -> None:
    entry = find(name)
    recipe, training = entry.recipe, entry.recipe.training
    assert (training.epochs, training.batch, training.weight_decay) == (30, 512, 1e-8)
    assert (recipe.drop_path, recipe.target, recipe.mixer) == (
        find(entry.parent).recipe.drop_path,
        "token_label(beta=0.5)",
        "mixtoken(alpha=1.0)",
    )
    schedule = make_schedule(torch.optim.SGD([torch.zeros(1)], lr=training.scaled_lr), training, 10)
    assert schedule(0) == 1e-6
    assert all(schedule(update) == pytest.approx(5e-6) for update in range(50, 300))
    assert entry.recipe.init == f"runs/{entry.parent}"


def test_figures_4_and_5() -> None:
    for size, top1 in (("s", 82.8), ("m", 83.7)):
        assert find(f"lvvit_{size}_participation_20").aim == top1
        for percent in (20, 40, 60, 80):
            target = find(f"lvvit_{size}_participation_{percent}").recipe.target
            assert parse(target).arguments == {"beta": 0.5, "participation": percent / 100}
    models = ["deit_tiny", "deit_small", "deit_base", *(f"t2t_vit_{depth}" for depth in (7, 12, 14, 19, 24))]
    for model in models:
        assert find(f"{model}_token_label").recipe.training.scaled_lr == pytest.approx(1.6e-3)
    for size in "tsm":
        labelled, plain = find(f"lvvit_{size}"), find(f"lvvit_{size}_standard")
        assert "Figure 5" in labelled.paper
        assert "Figure 5" in plain.paper
        kept = ("drop_path", "image_size", "test_crop", "epochs", "ema", "erasing", "smoothing")
        changed = {name for name, _, _ in differences(labelled.recipe, plain.recipe)}
        assert not changed & set(kept)
        assert plain.recipe.target == "plain"
    # T2T-ViT's own: learning rate, weight decay
    for depth, lr, decay in ((7, 1e-3, 0.03), (12, 1e-3, 0.03), (14, 5e-4, 0.05), (19, 5e-4, 0.065), (24, 5e-4, 0.065)):
        training = find(f"t2t_vit_{depth}").recipe.training
        assert (training.scaled_lr, training.weight_decay, training.batch, training.ema) == (lr, decay, 512, 0.99996)


def test_labels_are_asked_for_where_they_are_used() -> None:
    for entry in RECIPES.values():
        dense = parse(entry.recipe.target).name in ("token_label", "token_label_aligned", "relabel", "token_mix")
        assert bool(entry.recipe.data.labels) == dense == ("--labels LABELS" in entry.command), entry.name
        if parse(entry.recipe.model).name.startswith("lvvit"):  # a second classifier needs labels of its own
            has_one = parse(entry.recipe.model).arguments.get("aux_head", True)
            assert has_one == entry.recipe.target.startswith("token_label"), entry.name
