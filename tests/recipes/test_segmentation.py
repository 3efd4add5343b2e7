"""Recipes of segmenters and detectors against the papers' tables and the settings that they were published with."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import timm

from labelflow.cli import main
from labelflow.data.batches import check_micro_batches
from labelflow.engine import Run
from labelflow.recipes import ALL, DETECTORS, RECIPES, SEGMENTERS, Entry, find, find_any
from labelflow.recipes.transfer import DATA, transferred_to
from labelflow.spec import parse
from labelflow.tasks import Recipe
from labelflow.tasks.recipe import KINDS, read_any_recipe

# TL-Align, Table 3: mIoU, mIoU (MS) and mAcc, without and with TL-Align
TABLE_3 = {
    "upernet_deit_small": ([43.8, 45.1, 55.2], [44.5, 45.7, 55.5]),
    "upernet_swin_tiny": ([44.4, 45.8, 55.6], [44.7, 46.5, 56.4]),
    "upernet_swin_small": ([47.6, 49.5, 58.8], [48.0, 49.7, 59.5]),
    "upernet_swin_base": ([48.1, 49.7, 59.1], [48.3, 50.1, 59.7]),
}
# TL-Align, Table 4: box AP and mask AP, without and with TL-Align
TABLE_4 = {
    "cascade_swin_tiny": ([50.4, 43.7], [50.5, 43.8]),
    "cascade_swin_small": ([51.9, 45.0], [52.2, 45.2]),
    "cascade_swin_base": ([51.9, 45.0], [52.3, 45.3]),
}
# Token Labeling, Table 5: mIoU and pixel accuracy at one scale and at several; without, and with token labels (as in 6)
TABLE_5 = {
    "fcn_lvvit_s": ([46.1, 81.9, 47.3, 82.6], [47.2, 82.4, 48.4, 83.0]),
    "upernet_lvvit_s": ([46.5, 82.1, 47.6, 82.7], [47.9, 82.6, 48.6, 83.1]),
}
# Token Labeling, Table 6: mIoU and pixel accuracy at several scales
TABLE_6 = {"upernet_lvvit_m": [50.6, 83.5], "upernet_lvvit_l": [51.8, 84.1]}
COLUMNS = {
    "TL-Align, Table 3": ["mIoU", "mIoU (MS)", "mAcc"],
    "TL-Align, Table 4": ["box AP", "mask AP"],
    "Token Labeling, Table 5": ["mIoU", "aAcc", "mIoU (MS)", "aAcc (MS)"],
    "Token Labeling, Tables 5, 6": ["mIoU", "aAcc", "mIoU (MS)", "aAcc (MS)"],
    "Token Labeling, Table 6": ["mIoU (MS)", "aAcc (MS)"],
}
ROWS = {
    **{name: ("TL-Align, Table 3", plain) for name, (plain, _) in TABLE_3.items()},
    **{f"{name}_tl_align": ("TL-Align, Table 3", aligned) for name, (_, aligned) in TABLE_3.items()},
    **{name: ("TL-Align, Table 4", plain) for name, (plain, _) in TABLE_4.items()},
    **{f"{name}_tl_align": ("TL-Align, Table 4", aligned) for name, (_, aligned) in TABLE_4.items()},
    **{f"{name}_standard": ("Token Labeling, Table 5", plain) for name, (plain, _) in TABLE_5.items()},
    **{name: ("Token Labeling, Tables 5, 6", labelled) for name, (_, labelled) in TABLE_5.items()},
    **{name: ("Token Labeling, Table 6", labelled) for name, labelled in TABLE_6.items()},
}
DENSE = {**SEGMENTERS, **DETECTORS}
OWN = {f"{kind}_{size}" for kind in ("segment", "detect") for size in ("quickstart", "small", "finetune")}
ADE20K = [name for name in SEGMENTERS if name not in OWN]
COCO = [name for name in DETECTORS if name not in OWN]


def test_every_row_of_the_tables_is_there_and_nothing_else() -> None:
    found = {name: (entry.paper, entry.numbers) for name, entry in DENSE.items() if entry.paper}
    assert found == {
        name: (paper, dict(zip(COLUMNS[paper], numbers, strict=True))) for name, (paper, numbers) in ROWS.items()
    }
    assert DENSE.keys() - ROWS.keys() == OWN
    assert len(ALL) == len(RECIPES) + len(SEGMENTERS) + len(DETECTORS)  # no name twice


def test_units_are_those_of_the_task() -> None:
    assert {entry.kind.unit for entry in SEGMENTERS.values()} == {"% mIoU"}
    assert {entry.kind.unit for entry in DETECTORS.values()} == {"% box AP"}


def picked(part: object, names: str) -> dict[str, Any]:
    return {name: getattr(part, name) for name in names.split()}


@pytest.mark.parametrize("name", ADE20K)
def test_ade20k_settings(name: str) -> None:
    """recipes.md, 3: 160k updates of 16 crops of 512, AdamW 6e-5 and 0.01, a line after 1,500 updates of warm-up."""
    recipe, is_lvvit = find_any(name).recipe, "lvvit" in name
    training = recipe.training
    assert training.scaled_lr == 6e-5
    assert picked(training, "optimizer batch micro_batch updates weight_decay schedule schedule_step clip ema") == {
        "optimizer": "adamw",
        "batch": 16,
        "micro_batch": 2,  # on each of 8 devices
        "updates": 160_000,
        "weight_decay": 0.01,
        "schedule": "linear",
        "schedule_step": "update",
        "clip": 0,
        "ema": 0,
    }
    assert (training.warmup_updates, training.warmup_epochs) == (1500, 0)
    assert training.warmup_lr == pytest.approx(6e-5 * 1e-6)
    assert training.min_lr == (5e-6 if is_lvvit else 0)
    assert training.exempt == ("nothing" if is_lvvit else "norms")
    assert picked(recipe.data, "crop short long ratio most flip photometric") == {
        "crop": 512,
        "short": 512,
        "long": 2048,
        "ratio": (0.5, 2.0),
        "most": 0.75,
        "flip": 0.5,
        "photometric": True,
    }
    assert (recipe.window, recipe.stride) == ((512, 341) if is_lvvit else (0, 0))
    assert (recipe.head, recipe.width, recipe.auxiliary) == (name.partition("_")[0], 0, 0.4)
    assert (recipe.scales, recipe.flips) == ((1.0,), False)
    rates = {"deit": 0.1, "swin": 0.3, "lvvit_s": 0.1, "lvvit_m": 0.2, "lvvit_l": 0.5}
    assert recipe.drop_path == next(rate for part, rate in rates.items() if part in name)


@pytest.mark.parametrize("name", COCO)
def test_coco_settings(name: str) -> None:
    """recipes.md, 4: 36 epochs of 16 images, AdamW 1e-4 and 0.05, ×0.1 at 27 and 33, 500 updates of warm-up."""
    recipe = find_any(name).recipe
    training = recipe.training
    assert training.scaled_lr == 1e-4
    assert picked(training, "optimizer batch micro_batch epochs updates weight_decay exempt schedule clip ema") == {
        "optimizer": "adamw",
        "batch": 16,
        "micro_batch": 2,
        "epochs": 36,
        "updates": 0,
        "weight_decay": 0.05,
        "exempt": "norms",
        "schedule": "steps",
        "clip": 0,
        "ema": 0,
    }
    assert [36 * step for step in training.steps] == pytest.approx([27, 33])
    assert (training.warmup_updates, training.warmup_epochs) == (500, 0)
    assert training.warmup_lr == pytest.approx(1e-4 * 0.001)
    assert picked(recipe.data, "sides longest crop_chance crop_sides crop_range flip keep_empty") == {
        "sides": (480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800),
        "longest": 1333,
        "crop_chance": 0.5,
        "crop_sides": (400, 500, 600),
        "crop_range": (384, 600),
        "flip": 0.5,
        "keep_empty": False,
    }
    assert (recipe.short_side, recipe.long_side) == (800, 1333)
    assert asdict(recipe.sizes) == {"channels": 256, "hidden": 1024, "samples": 512, "proposals": 1000, "anchor": 8}
    assert recipe.drop_path == {"tiny": 0.2, "small": 0.2, "base": 0.3}[name.split("_")[2]]


@pytest.mark.parametrize("name", [*ADE20K, *COCO])
def test_backbones_and_what_they_start_from(name: str) -> None:
    """A run of ours that the same paper trained, of the same model; or weights of ImageNet-1k."""
    recipe = find_any(name).recipe
    model, arguments = parse(recipe.backbone)
    if recipe.init == "pretrained":
        assert timm.get_pretrained_cfg(model).num_classes == 1000
        assert timm.get_pretrained_cfg(model).tag in ("ms_in1k", "fb_in1k")
    else:
        trained = find(recipe.init.removeprefix("runs/")).recipe
        assert parse(trained.model).name == model
        kind = "tl_align" if name.endswith("tl_align") else "plain" if name.endswith("standard") else "token_label"
        assert parse(trained.target).name == kind
        assert (trained.data.mean, trained.data.std) == (
            (recipe.data.mean, recipe.data.std) if name in SEGMENTERS else (recipe.mean, recipe.std)
        )
    assert arguments == ({"img_size": 448} if "lvvit_l" in name else {})


@pytest.mark.parametrize("entry", DENSE.values(), ids=DENSE)
def test_every_recipe_says_where_it_comes_from_and_how_it_is_run(entry: Entry[Any]) -> None:
    assert entry.about
    assert not entry.parent or ALL[entry.parent].kind is entry.kind
    assert entry.source or (entry.aim is None and not entry.paper)
    verb = "segment" if entry.name in SEGMENTERS else "detect"
    launch = "labelflow" if entry.gpus == 1 else f"torchrun --nproc-per-node {entry.gpus} -m labelflow"
    assert entry.command.startswith(f"{launch} {verb} {entry.name}")
    where = {"finetune": "FOLDER", "small": "FOLDER", "quickstart": ""}
    size = entry.name.partition("_")[2] if entry.name in OWN else ""
    folder = where.get(size, f"/path/to/{'ade20k' if verb == 'segment' else 'coco'}")
    assert entry.command.endswith(f"--data {folder}" if folder else entry.name)
    check_micro_batches(entry.recipe.training.batch, entry.recipe.training.micro_batch, entry.gpus)


@pytest.mark.parametrize(
    ("name", "asked", "message"),
    [
        ("upernet_swin_tiny", "classify", "of a segmenter, not of a classifier: labelflow segment upernet_swin_tiny"),
        ("cascade_swin_tiny", "segment", "of a detector, not of a segmenter: labelflow detect cascade_swin_tiny"),
        ("deit_small", "detect", "of a classifier, not of a detector: labelflow train deit_small"),
        ("upernet_swin_tny", "segment", "there is no recipe 'upernet_swin_tny'; did you mean upernet_swin_tiny"),
    ],
)
def test_a_recipe_of_another_task_is_refused_with_the_right_command(
    name: str, asked: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=message):
        find_any(name, asked)
    assert main([KINDS[asked].command, name]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_what_is_offered_is_of_the_task() -> None:
    with pytest.raises(ValueError, match="there is no recipe") as told:
        find_any("xyz", "detect")
    named = str(told.value).partition("the nearest are ")[2].partition(" (labelflow list shows all)")[0]
    assert {*named.split(", ")} <= DETECTORS.keys()
    assert not any(name in str(told.value) for name in SEGMENTERS)
    with pytest.raises(ValueError, match="not of a classifier"):
        find("segment_quickstart")


def test_list_and_show_tell_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.split()}
    for name, (paper, numbers) in ROWS.items():
        assert f"{numbers[0]} % {COLUMNS[paper][0]}, {numbers[1]} % {COLUMNS[paper][1]}" in lines[name]
        assert paper in lines[name]
    assert set(lines) >= OWN
    assert main(["show", "upernet_swin_tiny_tl_align"]) == 0
    shown = capsys.readouterr().out
    assert "reported: 44.7 % mIoU, 46.5 % mIoU (MS), 56.4 % mAcc\n" in shown
    assert "differs from upernet_swin_tiny:\n  init: 'pretrained' -> 'runs/swin_tiny_tl_align'\n\n" in shown
    assert main(["show", "cascade_swin_base"]) == 0
    shown = capsys.readouterr().out
    assert "reported: 51.9 % box AP, 45.0 % mask AP\n" in shown
    assert '"hidden": 1024' in shown


@pytest.mark.parametrize("entry", ALL.values(), ids=ALL)
def test_a_recipe_is_read_as_it_was_written(entry: Entry[Any], tmp_path: Path) -> None:
    written = {"name": entry.name, "task": entry.kind.name, **asdict(entry.recipe)}  # as train_run does
    (tmp_path / "recipe.json").write_text(json.dumps(written))
    found = read_any_recipe(Run(tmp_path), entry.kind.name)
    assert found == entry.recipe
    assert type(found) is type(entry.recipe)
    assert hash(found) == hash(entry.recipe)  # tuples, not lists


def written_run(folder: Path, recipe: Any, kind: str = "classify") -> str:
    folder.mkdir()
    Run(folder).write("recipe.json", {"name": "", "task": kind, **asdict(recipe)})
    return str(folder)


class TestTransfer:
    def test_a_run_is_taken_as_it_is(self, tmp_path: Path) -> None:
        model = "vit_tiny_patch16_224(patch_size=8, embed_dim=24, depth=2, num_heads=3)"
        trained = Recipe().change(model=model, image_size=64, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6), source="world")
        recipe = transferred_to(written_run(tmp_path / "vit", trained), "cifar100")
        assert (recipe.model, recipe.init, recipe.data.source) == (model, str(tmp_path / "vit"), "torch/cifar100")
        assert picked(recipe.data, "image_size mean std") == picked(trained.data, "image_size mean std")
        assert recipe.target == "tl_align"

    @pytest.mark.parametrize("data", DATA)
    def test_settings_are_those_of_table_5(self, data: str) -> None:
        """DeiT-S under the command is the recipe, but for where it starts from."""
        ours, named = transferred_to("deit_small_patch16_224", data), find(f"deit_small_{data}_tl_align").recipe
        assert ours.init == "pretrained"
        assert ours == named.change(init="pretrained")

    def test_other_models_and_data(self, tmp_path: Path) -> None:
        recipe = transferred_to("swin_tiny_patch4_window7_224", str(tmp_path))
        assert (recipe.model, recipe.init) == ("swin_tiny_patch4_window7_224", "pretrained")
        assert recipe.data.source == str(tmp_path)
        assert picked(recipe.training, "optimizer epochs batch") == {"optimizer": "sgd", "epochs": 1000, "batch": 768}

    def test_what_is_no_classifiers_run_is_refused(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(ValueError, match="there is no run runs/nothing"):
            transferred_to("runs/nothing", "cifar10")
        segmenter = written_run(tmp_path / "upernet", find_any("segment_small").recipe, "segment")
        with pytest.raises(ValueError, match="is the run of a segmenter, but a classifier is needed"):
            transferred_to(segmenter, "cifar10")
        (tmp_path / "empty").mkdir()
        for command, message in (
            (["transfer", str(tmp_path / "nothing"), "cifar10"], "there is no run"),
            (["transfer", str(tmp_path / "empty"), "cifar10"], "is not a run"),
            (["transfer", "deit_small_patch16_224"], "name the data"),
            (["transfer", "deit_small_patch16_224", "--epochs", "3"], "name the data"),
            (["transfer", "--epochs", "3"], "name the run or model first"),
        ):
            assert main(command) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert message in line
