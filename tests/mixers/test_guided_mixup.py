"""GuidedMixup against its definition, done image by image and pixel by pixel."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor
from torch.testing import assert_close

import labelflow as lf
from labelflow.mixers.guided_mixup import one_cycle


def naive_cycle(distances: Tensor) -> list[int]:
    """Of whole numbers, so that the first of equals is the same."""
    batch = len(distances)
    apart = distances.tolist()
    if batch == 1:
        return [0]
    first, last = max(
        ((i, j) for i in range(batch) for j in range(batch) if i != j), key=lambda pair: apart[pair[0]][pair[1]]
    )
    partner, had = {first: last}, {first, last}
    while len(had) < batch:
        following = max((j for j in range(batch) if j not in had), key=lambda j: apart[last][j])
        partner[last] = following
        had.add(following)
        last = following
    partner[last] = first
    return [partner[i] for i in range(batch)]


@given(batch=st.integers(1, 9), levels=st.sampled_from([1, 3, 1000]), seed=st.integers(0, 2**31))
def test_partners_form_one_cycle(batch: int, levels: int, seed: int) -> None:
    distances = torch.randint(levels, (batch, batch), generator=Generator().manual_seed(seed)).float()
    distances = (distances + distances.T).fill_diagonal_(0)
    before = distances.clone()
    partner = one_cycle(distances).tolist()
    assert partner == naive_cycle(distances)
    assert torch.equal(distances, before)
    place, seen = 0, []
    for _ in range(batch):
        seen.append(place)
        place = partner[place]
    assert place == 0
    assert sorted(seen) == list(range(batch))


def mirror(place: int, side: int) -> int:
    """… 2 1 | 0 1 2 … side-1 | side-2 …"""
    place = abs(place) % (2 * side - 2)
    return min(place, 2 * side - 2 - place)


def parts(importance: Tensor) -> Tensor:
    """Gaussian of 7×7 places, σ = 3, then a sum of 1: (H, W) -> the same"""
    height, width = importance.shape
    found = torch.zeros_like(importance)
    for row in range(height):
        for column in range(width):
            for down in range(-3, 4):
                for right in range(-3, 4):
                    weight = math.exp(-(down**2 + right**2) / (2 * 3**2))
                    found[row, column] += weight * importance[mirror(row + down, height), mirror(column + right, width)]
    return found / found.sum()


def test_the_definition() -> None:
    importance = torch.rand(5, 8, 9, generator=Generator().manual_seed(1), dtype=torch.float64) ** 8
    maps = [parts(one) for one in importance]
    mix = lf.GuidedMixup()(torch.empty(5, 3, 8, 9), importance=importance)
    apart = torch.tensor([[float(((one - two) ** 2).sum() ** 0.5) for two in maps] for one in maps])
    assert mix.partner.tolist() == naive_cycle(apart)
    for i, j in enumerate(mix.partner.tolist()):
        share = torch.zeros(8, 9)
        for row in range(8):
            for column in range(9):
                own, other = float(maps[i][row, column]), float(maps[j][row, column])
                share[row, column] = own / (own + other)
        assert_close(mix.share[i, 0], share, atol=1e-5, rtol=0)
        assert_close(mix.lam[i], share.mean(), atol=1e-5, rtol=0)


def test_images_with_important_parts_apart_are_paired_and_both_keep_theirs() -> None:
    importance = torch.zeros(4, 32, 32)
    for image, (row, column) in enumerate([(4, 4), (6, 4), (26, 26), (26, 27)]):
        importance[image, row, column] = 1
    mix = lf.GuidedMixup()(torch.empty(4, 3, 32, 32), importance=importance)
    assert {i < 2 for i in mix.partner[:2].tolist()} == {False}
    assert {i < 2 for i in mix.partner[2:].tolist()} == {True}
    assert mix.share[0, 0, 4, 4] == 1
    assert mix.share[0, 0, 26, 26] == 0
    assert mix.share[0, 0, 0, 31] == 0.5  # important in neither
    assert_close(lf.GuidedMixup()(torch.empty(4, 3, 32, 32), importance=1e9 * importance).share, mix.share)


@pytest.mark.parametrize("importance", [torch.rand(1, 6, 6).expand(3, 6, 6), torch.zeros(3, 6, 6), torch.ones(3, 2, 2)])
def test_equal_maps_are_halved(importance: Tensor) -> None:
    share = lf.GuidedMixup()(torch.empty(3, 3, 6, 6), importance=importance).share
    assert_close(share, torch.full_like(share, 0.5))


def test_a_map_of_any_size_is_resized() -> None:
    importance = torch.rand(2, 4, 5)
    large = torch.nn.functional.interpolate(importance[None], (16, 20), mode="bilinear")[0]
    found, expected = (lf.GuidedMixup()(torch.empty(2, 3, 16, 20), importance=one).share for one in (importance, large))
    assert_close(found, expected)


def test_guides() -> None:
    assert lf.GuidedMixup().guide == "saliency(kind='magnitude')"
    assert lf.GuidedMixup("gradient", size=1.0).guide == "gradient(size=1.0)"
