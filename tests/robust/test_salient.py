"""What matters is hidden, or all else: against a naive loop, and from the command's side."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from labelflow.analysis.relevance import relevance
from labelflow.robust.hidden import Hiding
from labelflow.robust.models import FromPixels
from labelflow.robust.pictures import CLEAN, Pictures, load_pictures
from labelflow.robust.salient import TENTHS, Salient, SalientCells, foreground, load_salient
from labelflow.robust.suites import Settings, choose_suites
from robust.asking import CPU, MODEL, opened, session

SIZE, SIDE = 32, 48


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


def test_each_level_hides_cells_of_the_relevance_map(cells: SalientCells) -> None:
    pictures = torch.rand(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1)) + 0.01
    levels = cells.spread(pictures).unflatten(0, (2, 19))
    seen = torch.nn.functional.interpolate(pictures, (SIZE, SIZE), mode="bilinear", antialias=True)
    maps: Tensor = relevance(cells.model.model, (seen - 0.5) / 0.2, method="rollout")
    assert maps.shape == (2, 4, 4)
    for image in range(2):
        for at, part in enumerate(TENTHS.tolist()):
            front = naive_foreground(maps[image].flatten().double().tolist(), part)
            for row in range(4):
                for column in range(4):
                    place = slice(12 * row, 12 * row + 12), slice(12 * column, 12 * column + 12)
                    own, nothing = pictures[image][:, *place], torch.zeros(3, 12, 12)
                    inside = 4 * row + column in front
                    assert torch.equal(levels[image, at][:, *place], nothing if inside else own)
                    if at < 9:
                        assert torch.equal(levels[image, 10 + at][:, *place], own if inside else nothing)
    assert torch.equal(levels[:, 9], torch.zeros_like(pictures))  # all of it is hidden


def test_answers_under_each_level(cells: SalientCells, folder: Path, tmp_path: Path) -> None:
    asking, found = session(folder, tmp_path, (0,)), opened(folder)
    (clean,), (hidden,) = asking.ask(found, [CLEAN, cells])
    assert asking.asked == 9 * 20
    model = asking.models[0]
    for index in range(9):  # each level's answer is the model's to that level's picture
        seen = Pictures(found, model.preprocessing, [CLEAN], 0)[0, index].levels / 255
        with torch.no_grad():
            expected = model.model(cells.spread(seen)).sort(descending=True).values  # (19, 3)
        np.testing.assert_allclose(hidden.logits[:, index], expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(clean.logits[0, index], model.model(seen)[0].sort(descending=True).values, rtol=1e-4)
    assert (hidden.places[9] == hidden.places[9, 0]).all()  # nothing is seen: the same answer always
    pictures = Pictures(found, asking.models[0].preprocessing, [cells, CLEAN], 0)
    assert len(pickle.dumps(pictures)) < 50_000  # no model goes to workers, which may be other processes
    assert len(next(iter(load_pictures(pictures, 40, 0, [0, 0]))).labels) == 2  # 38 pictures at once
    again = session(folder, tmp_path, (0,))
    again.ask(found, [cells])
    assert again.asked == 0
    for parameter in cells.model.parameters():
        parameter.data.mul_(2)
    other = SalientCells(cells.model, SIZE)
    again.ask(found, [other])  # another model tells other cells
    assert again.asked == 9 * 19


def test_the_suite(folder: Path, tmp_path: Path) -> None:
    asking, found = session(folder, tmp_path), opened(folder)
    section = Salient(asking, found, f"{MODEL}={folder / '0.safetensors'}").measure()
    assert [len(line) for chart in section.charts for line in chart.lines.values()] == [10] * 4
    left = section.charts[1].lines[asking.models[0].name]
    (clean,) = asking.ask(found)
    assert left[-1] == (1.0, clean[0].top1[0])
    assert [len(strip.pictures) for strip in section.strips] == [10, 10]


def test_models_without_a_classifier_can_tell() -> None:
    cells = load_salient(MODEL.replace("img_size=32", "img_size=32, num_classes=0") + "=random", CPU)
    assert cells.spread(torch.rand(1, 3, 32, 32)).shape == (19, 3, 32, 32)


def test_refusals(folder: Path, tmp_path: Path) -> None:
    asking, found = session(folder, tmp_path), opened(folder)
    with pytest.raises(ValueError, match=r"--salient RUN\|MODEL"):
        Salient(asking, found, "")
    with pytest.raises(ValueError, match="a ViT, a DeiT or an LV-ViT, not of ResNet"):
        load_salient("resnet18=random", CPU)
    with pytest.raises(ValueError, match="there is no such folder"):
        Salient(asking, found, "runs/nowhere")


def test_it_is_asked_for_where_a_model_is_named(folder: Path) -> None:
    found = opened(folder)
    assert "salient" not in choose_suites("", found, Settings())
    assert "salient" in choose_suites("", found, Settings(hiding=Hiding(salient="a")))
