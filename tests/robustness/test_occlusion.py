"""Occlusion: which cells, which pixels, and accuracies against naive loops."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng
from torch import Tensor

from labelflow.analysis.relevance import relevance
from labelflow.robustness.images import CLEAN, PerturbedImages, load_images
from labelflow.robustness.models import FromPixels
from labelflow.robustness.occlusion import (
    OcclusionSuite,
    PatchDrop,
    SalientCells,
    SalientSuite,
    foreground,
    load_salient,
)
from labelflow.robustness.settings import OcclusionSettings, Settings
from labelflow.robustness.suites import choose_suites
from robustness.small import CPU, MODEL, SIZE, ColourReader, colour_set, known, open_images, percent, read, values, vits

SIDE = 48
IMAGE = default_rng(0).integers(1, 256, (224, 224, 3), np.uint8)  # nowhere black


@pytest.mark.parametrize("level", range(9))
def test_tenths_of_the_cells_are_black(level: int) -> None:
    cells = PatchDrop(14)(IMAGE, level, default_rng(3)).reshape(14, 16, 14, 16, 3).swapaxes(1, 2).reshape(196, -1)
    black = (cells == 0).all(1)
    assert black.sum() == 196 * (level + 1) // 10
    original = IMAGE.reshape(14, 16, 14, 16, 3).swapaxes(1, 2).reshape(196, -1)
    assert (cells[~black] == original[~black]).all()


@given(st.integers(1, 20), st.integers(20, 50), st.integers(0, 30), st.integers(0, 2**32))
def test_what_is_occluded_stays_occluded(grid: int, side: int, shift: int, seed: int) -> None:
    image, before = IMAGE[:side, :side], np.zeros((side, side), bool)
    for level in range(9):
        seen = PatchDrop(grid, shift)(image, level, default_rng(seed))
        occluded = (seen == 0).all(2)
        assert (occluded | (seen == image).all(2)).all()
        assert not (before & ~occluded).any()
        cells = grid**2 * (level + 1) // 10
        assert bool(occluded.any()) == bool(cells)
        before = occluded


def test_a_grid_of_all_pixels_occludes_pixels() -> None:
    occluded = (PatchDrop(32)(IMAGE[:32, :32], 4, default_rng(0)) == 0).all(2)
    assert occluded.sum() == 512


def test_a_shift_moves_the_cells() -> None:
    plain, moved = (PatchDrop(14, shift)(IMAGE, 5, default_rng(1)) == 0 for shift in (0, 8))
    assert (np.roll(plain.all(2), 8, (0, 1)) == moved.all(2)).all()


def test_settings_that_are_refused() -> None:
    with pytest.raises(ValueError, match="occlusion-grid must be at least 1"):
        OcclusionSettings(occlusion_grid=0)


@pytest.fixture
def cells() -> SalientCells:
    torch.manual_seed(0)
    options = {"patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2, "img_size": SIZE, "num_classes": 3}
    model = timm.create_model("vit_tiny_patch16_224", **options).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return SalientCells(FromPixels(model, (0.5,) * 3, (0.2,) * 3), SIZE)


def naive_foreground(values: list[float], part: float) -> set[int]:
    """The most relevant cells, one by one, until they hold this part of all."""
    chosen: set[int] = set()
    for place in sorted(range(len(values)), key=lambda place: -values[place]):
        if sum(values[one] for one in chosen) >= part * sum(values) - 1e-9:
            break
        chosen.add(place)
    return chosen


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=30, unique=True), st.integers(1, 10))
def test_the_fewest_cells_that_hold_a_part(values: list[int], tenths: int) -> None:
    found = foreground(torch.tensor([values]).float(), torch.tensor([tenths / 10]))
    exact = sum(values) * tenths % 10 == 0 and tenths < 10  # a sum that is met exactly may be rounded either way
    naive = naive_foreground([float(value) for value in values], tenths / 10)
    chosen = set(found[0, 0].nonzero()[:, 0].tolist())
    assert chosen == naive or (exact and naive < chosen and len(chosen - naive) == 1)


def test_each_level_occludes_cells_of_the_relevance_map(cells: SalientCells) -> None:
    images = torch.rand(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1)) + 0.01
    levels = cells.apply(images).unflatten(0, (2, 19))
    seen = torch.nn.functional.interpolate(images, (SIZE, SIZE), mode="bilinear", antialias=True)
    maps: Tensor = relevance(cells.model.model, (seen - 0.5) / 0.2, method="rollout")
    assert maps.shape == (2, 4, 4)
    for image in range(2):
        for at, part in enumerate([tenths / 10 for tenths in range(1, 11)]):
            front = naive_foreground(maps[image].flatten().double().tolist(), part)
            for row in range(4):
                for column in range(4):
                    place = slice(12 * row, 12 * row + 12), slice(12 * column, 12 * column + 12)
                    own, nothing = images[image][:, *place], torch.zeros(3, 12, 12)
                    inside = 4 * row + column in front
                    assert torch.equal(levels[image, at][:, *place], nothing if inside else own)
                    if at < 9:
                        assert torch.equal(levels[image, 10 + at][:, *place], own if inside else nothing)
    assert torch.equal(levels[:, 9], torch.zeros_like(images))  # all is occluded


def test_predictions_at_each_level(cells: SalientCells, folder: Path, tmp_path: Path) -> None:
    evaluator, dataset = vits(folder, tmp_path, (0,)), open_images(folder)
    (clean,), (occluded,) = evaluator.predict(dataset, [CLEAN, cells])
    assert evaluator.evaluated == 9 * 20
    model = evaluator.models[0]
    for index in range(9):  # each level's prediction is the model's for that level's image
        seen = PerturbedImages(dataset, model.preprocessing, [CLEAN], 0)[0, index].levels / 255
        with torch.no_grad():
            expected = model.model(cells.apply(seen)).sort(descending=True).values  # (19, 3)
        np.testing.assert_allclose(occluded.logits[:, index], expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(clean.logits[0, index], model.model(seen)[0].sort(descending=True).values, rtol=1e-4)
    assert (occluded.classes[9] == occluded.classes[9, 0]).all()  # black images: the same prediction
    images = PerturbedImages(dataset, evaluator.models[0].preprocessing, [cells, CLEAN], 0)
    assert len(pickle.dumps(images)) < 50_000  # no model is sent to worker processes
    assert len(next(iter(load_images(images, 40, 0, [0, 0]))).labels) == 2  # 38 images in a batch
    again = vits(folder, tmp_path, (0,))
    again.predict(dataset, [cells])
    assert again.evaluated == 0
    for parameter in cells.model.parameters():
        parameter.data.mul_(2)
    other = SalientCells(cells.model, SIZE)
    again.predict(dataset, [other])  # another model has other salient cells
    assert again.evaluated == 9 * 19


def test_the_salient_suite_against_a_naive_loop(folder: Path, tmp_path: Path) -> None:
    """Labels are what a model sees at one level or another; half of the relevance is the fifth of ten."""
    name = f"{MODEL}={folder / '0.safetensors'}"
    cells = load_salient(name, CPU)
    reds = [40 + 13 * number for number in range(16)]
    images = torch.zeros(16, 3, SIZE, SIZE)
    images[:, 0] = torch.tensor(reds)[:, None, None] / 255
    means = 255 * cells.apply(images).unflatten(0, (16, 19))[:, :, 0].double().mean((2, 3))
    seen = [[read(mean) for mean in own] for own in means.tolist()]  # [image][level]
    labels = [own[level] for own, level in zip(seen, [4, 4, 4, 14, 14, 3, 13, 5] * 2, strict=True)]
    classes = [f"{label:03}" for label in range(256)]
    dataset = colour_set(tmp_path, classes, list(zip(labels, reds, strict=True)))
    shifts = {"exact": 0, "one more": 1}
    evaluator = known({own: ColourReader(256, shift) for own, shift in shifts.items()}, classes, tmp_path / "out")
    section = SalientSuite(evaluator, dataset, name).measure()

    def top1(level: int, shift: int) -> float:
        return percent([own[level] + shift == label for own, label in zip(seen, labels, strict=True)])

    by_metric = {"salient cells occluded": range(10), "only salient cells visible": range(10, 19)}
    for chart, (title, levels) in zip(section.charts, by_metric.items(), strict=True):
        expected = [[top1(level, shift) for level in levels] for shift in shifts.values()]
        assert expected[0][4] not in (expected[0][3], expected[0][5])  # levels differ
        metric = values(section)[f"top-1, {title} (50 % of the relevance)"]
        assert metric == pytest.approx([own[4] for own in expected])
        for own, line in zip(expected, chart.lines.values(), strict=True):
            assert [y for _, y in line][:9] == pytest.approx(own[:9])
            assert [x for x, _ in line] == pytest.approx([tenths / 10 for tenths in range(1, 11)])
    whole = [percent([red + shift == label for red, label in zip(reds, labels, strict=True)]) for shift in (0, 1)]
    assert [line[-1][1] for line in section.charts[1].lines.values()] == pytest.approx(whole)
    assert [len(strip.images) for strip in section.strips] == [10, 10]


def test_the_occlusion_suite_against_a_naive_loop(tmp_path: Path) -> None:
    """Of an image of one colour, the mean that is left says how many of the 16 cells are black."""
    black = [0, 1, 3, 4, 6, 8, 9, 11, 12, 14]  # cells at 0 to 9 tenths, rounded down
    reds = [16, 32, 48, 16, 32, 48, 16, 32, 48, 16]
    tenths = [5, 5, 0, 1, 5, 9, 2, 7, 4, 6]  # at which a model is right
    classes = [f"{label:02}" for label in range(64)]
    labels = [red * (16 - black[at]) // 16 for red, at in zip(reds, tenths, strict=True)]
    dataset = colour_set(tmp_path, classes, list(zip(labels, reds, strict=True)))
    shifts = {"exact": 0, "one more": 1}
    evaluator = known({own: ColourReader(64, shift) for own, shift in shifts.items()}, classes, tmp_path / "out")
    section = OcclusionSuite(evaluator, dataset, OcclusionSettings(occlusion_grid=4)).measure()
    top1 = [
        [
            percent([red * (16 - cells) // 16 + shift == label for red, label in zip(reds, labels, strict=True)])
            for cells in black
        ]
        for shift in (0, 1)
    ]
    assert values(section) == {
        "top-1, 50 % occluded": pytest.approx([own[5] for own in top1]),
        "mean top-1, 10 to 90 % occluded": pytest.approx([sum(own[1:]) / 9 for own in top1]),
    }
    assert top1[0][5] not in (top1[0][4], top1[0][6], 0)
    for own, line in zip(top1, section.charts[0].lines.values(), strict=True):
        assert line == [pytest.approx((at / 10, value)) for at, value in enumerate(own)]
    assert list(section.strips[0].images) == [f"{percent} %" for percent in range(0, 100, 10)]
    assert [int(image[..., 0].sum()) for image in section.strips[0].images.values()] == [
        reds[0] * 64 * (16 - cells) for cells in black
    ]


def test_models_without_a_classifier_have_saliency() -> None:
    cells = load_salient(MODEL.replace("img_size=32", "img_size=32, num_classes=0") + "=random", CPU)
    assert cells.apply(torch.rand(1, 3, 32, 32)).shape == (19, 3, 32, 32)


def test_salient_errors(folder: Path, tmp_path: Path) -> None:
    evaluator, dataset = vits(folder, tmp_path), open_images(folder)
    with pytest.raises(ValueError, match=r"--salient RUN\|MODEL"):
        SalientSuite(evaluator, dataset, "")
    with pytest.raises(ValueError, match="a ViT, a DeiT or an LV-ViT, not of ResNet"):
        load_salient("resnet18=random", CPU)
    with pytest.raises(ValueError, match="there is no such folder"):
        SalientSuite(evaluator, dataset, "runs/nowhere")


def test_the_salient_suite_runs_if_a_model_is_named(folder: Path) -> None:
    dataset = open_images(folder)
    assert "salient" not in choose_suites("", dataset, Settings())
    assert "salient" in choose_suites("", dataset, Settings(occlusion=OcclusionSettings(salient="a")))
