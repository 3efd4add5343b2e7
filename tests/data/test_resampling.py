"""Views of a batch are Pillow's, within 1; several moves at once show what their map says, and fill what they lost."""

from collections.abc import Sequence
from functools import reduce

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from timm.data import auto_augment
from torch import Tensor

from data.test_batched import (
    COUNT,
    HEIGHT,
    POLICIES,
    WIDTH,
    Call,
    check_on_device,
    drawn_calls,
    picture,
    pictures,
    tensor,
)
from data.test_geometry import PLAIN, as_tensor, coordinates, middles, seen_at
from labelflow.chance import drawn_from
from labelflow.data import train_transform
from labelflow.data.geometry import GEOMETRIC, Geometry, Matrix, Tracked
from labelflow.data.resampling import _constants, _places, resample

FILL = (124, 116, 104)
BILINEAR, BICUBIC = Image.Resampling.BILINEAR, Image.Resampling.BICUBIC
MOVES = {  # and their arguments, the largest that timm draws
    auto_augment.shear_x: 0.3,
    auto_augment.shear_y: 0.3,
    auto_augment.translate_x_rel: 0.45,
    auto_augment.translate_y_rel: 0.45,
    auto_augment.translate_x_abs: 250.0,
    auto_augment.translate_y_abs: 250.0,
    auto_augment.rotate: 30.0,
}


def stack(matrices: Sequence[Matrix]) -> Tensor:
    return torch.from_numpy(np.stack(matrices)).float()


def frames_of(geometries: Sequence[Geometry]) -> Tensor:
    """Those of later moves, filled up with the identity: (B, M, 3, 3)"""
    most = max(len(geometry.frames) for geometry in geometries)
    padded = [[*geometry.frames[1:], *[np.eye(3)] * most][: most - 1] for geometry in geometries]
    return torch.from_numpy(np.array(padded).reshape(len(geometries), -1, 3, 3)).float()


def none_of(images: Tensor) -> Tensor:
    return torch.empty(len(images), 0, 3, 3)


def centres(height: int, width: int) -> np.ndarray:
    """The middles of pixels, in fractions: (3, H·W)"""
    y, x = np.indices((height, width)).reshape(2, -1) + 0.5
    return np.stack([x / width, y / height, np.ones_like(x)])


def edge_distance(matrix: Matrix, height: int, width: int) -> np.ndarray:
    """How many pixels within the frame the places of a map are, (H, W); negative outside."""
    x, y = (matrix @ centres(height, width))[:2] * np.array([[width], [height]])
    return np.minimum.reduce([x, width - x, y, height - y]).reshape(height, width)


def check_calls(images: Tensor, calls: Sequence[Call]) -> None:
    """One operation each, as timm carries it out on Pillow's images."""
    tracked = [
        call.operation(Tracked(picture(image), Geometry((WIDTH, HEIGHT))), *call.arguments, **call.options)
        for image, call in zip(images, calls, strict=True)
    ]
    maps = [one.geometry.moved for one in tracked]
    cubic = torch.tensor([call.options["resample"] == BICUBIC for call in calls])
    views = resample(images, stack(maps), none_of(images), FILL, cubic)
    difference = (views.int() - torch.stack([tensor(one.image) for one in tracked]).int()).abs()
    sure = torch.from_numpy(np.abs([edge_distance(one, HEIGHT, WIDTH) for one in maps]) > 1e-4)[:, None]
    assert (difference * sure).max() <= 1


# ---- one move


@given(
    st.lists(
        st.tuples(st.sampled_from(list(MOVES)), st.floats(-1, 1), st.sampled_from([BILINEAR, BICUBIC])),
        min_size=COUNT,
        max_size=COUNT,
    )
)
def test_one_move_is_pillows(moves: list[tuple]) -> None:
    calls = [Call(move, (MOVES[move] * part,), {"resample": how, "fillcolor": FILL}) for move, part, how in moves]
    check_calls(pictures(), calls)


@pytest.mark.parametrize("policy", [policy for policy in POLICIES if "3a" not in policy])
def test_whatever_timm_draws(policy: str) -> None:
    calls = [call for call in drawn_calls(policy, 300) if call.operation in GEOMETRIC]
    assert len(calls) > 30
    for how in (BILINEAR, BICUBIC):  # timm would choose one of them each time it is called
        settled = [call._replace(options=call.options | {"resample": how}) for call in calls]
        check_calls(pictures()[torch.arange(len(calls)) % COUNT], settled)


def test_nearly_all_pixels_of_a_photograph_are_pillows() -> None:
    """Where they are not, a sum in double precision is just below a whole number."""
    images = pictures()[:1].expand(60, -1, -1, -1)
    angles = np.linspace(-30, 30, 60)
    for how in (BILINEAR, BICUBIC):
        tracked = [
            Tracked(picture(images[0]), Geometry((WIDTH, HEIGHT))).rotate(angle, resample=how, fillcolor=FILL)
            for angle in angles
        ]
        maps = stack([one.geometry.moved for one in tracked])
        views = resample(images, maps, none_of(images), FILL, torch.full((60,), how == BICUBIC))
        assert (views != torch.stack([tensor(one.image) for one in tracked])).float().mean() < 0.002


@pytest.mark.parametrize("cubic", [False, True])
def test_no_move_changes_nothing(cubic: bool) -> None:
    images = pictures().clone()
    identity = torch.eye(3).expand(COUNT, 3, 3)
    views = resample(images, identity, identity[:, None], FILL, torch.full((COUNT,), cubic))
    assert torch.equal(views, pictures())
    assert torch.equal(images, pictures())


@pytest.mark.parametrize("cubic", [False, True])
def test_whole_pixels_stay_whole(cubic: bool) -> None:
    """A translation by 7 pixels, which is no whole number of anything in fractions."""
    images = pictures()
    step = torch.tensor([[1, 0, 7 / WIDTH], [0, 1, -7 / HEIGHT], [0, 0, 1]]).expand(COUNT, 3, 3)
    views = resample(images, step, none_of(images), FILL, torch.full((COUNT,), cubic))
    assert torch.equal(views[:, :, 7:, :-7], images[:, :, :-7, 7:])
    outside = torch.cat([views[:, :, :7].flatten(2), views[:, :, :, -7:].flatten(2)], 2)
    assert (outside == torch.tensor(FILL)[:, None]).all()


@pytest.mark.parametrize("pixels", [(0.5, 0), (-0.5, 0), (0, 0.5), (0, -0.5)])
def test_the_left_and_upper_edges_belong_to_an_image(pixels: tuple[float, float]) -> None:
    """Half a pixel aside, one row or column comes from an edge exactly. The others do not."""
    images = pictures()[:1, :, :32, :32]
    x, y = pixels
    expected = picture(images[0]).transform(
        (32, 32), Image.Transform.AFFINE, (1, 0, x, 0, 1, y), BILINEAR, fillcolor=FILL
    )
    step = torch.tensor([[[1, 0, x / 32], [0, 1, y / 32], [0, 0, 1]]])
    assert torch.equal(resample(images, step, none_of(images), FILL, torch.tensor([False]))[0], tensor(expected))


@given(st.lists(st.floats(-0.4, 0.4), min_size=6, max_size=6), st.integers(0, 255), st.booleans())
def test_one_colour_stays_that_colour(changes: list[float], colour: int, cubic: bool) -> None:
    """Whatever the weights add up to in single precision."""
    images = torch.full((1, 3, 21, 34), colour, dtype=torch.uint8)
    step = torch.eye(3)[None].clone()
    step[0, :2] += torch.tensor(changes).view(2, 3)
    views = resample(images, step, none_of(images), (colour,) * 3, torch.tensor([cubic]))
    assert torch.equal(views, images)


# ---- several moves at once


def several(seed: int, number: int, size: tuple[int, int]) -> Geometry:
    """Moves of any kind, one after the other."""
    rng = np.random.default_rng(seed)
    seen = Tracked(Image.new("RGB", size), Geometry(size))
    for move in rng.choice(list(MOVES), number):
        largest = min(MOVES[move], 30)  # pixels are not to be lost altogether
        seen = move(seen, float(rng.uniform(-largest, largest)), resample=BILINEAR)
    return seen.geometry


def wave(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A smooth image, in fractions: (3, ...)"""
    return 128 + 100 * np.stack([np.sin(3 * x + 2 * y), np.cos(4 * y - x), np.sin(3 * x) * np.cos(3 * y)])


@pytest.mark.parametrize("cubic", [False, True])
def test_moves_in_one_map_show_what_it_says_and_nothing_that_was_lost(cubic: bool) -> None:
    height, width, fill = 90, 120, (255, 0, 255)
    geometries = [several(seed, 1 + seed % 4, (width, height)) for seed in range(24)]
    points = centres(height, width)
    image = torch.from_numpy(wave(*points[:2]).round().astype(np.uint8)).view(1, 3, height, width)
    frames = frames_of(geometries)
    assert frames.shape[1] == 3
    maps = stack([geometry.moved for geometry in geometries])
    views = resample(image.expand(24, -1, -1, -1), maps, frames, fill, torch.full((24,), cubic)).numpy()
    lost_later = 0
    for geometry, view in zip(geometries, views, strict=True):
        distances = np.array([edge_distance(frame, height, width) for frame in geometry.frames])  # (moves, H, W)
        distance = distances.min(0)
        assert (view[:, distance < -1e-3] == np.array(fill)[:, None]).all()
        expected = wave(*(geometry.moved @ points)[:2]).reshape(3, height, width)
        error = np.abs(view + 0.5 - expected)[:, distance > 2]  # it is rounded down
        assert error.max(initial=0) <= 1.5
        lost_later += ((distances[0] > 1) & (distance < -1)).sum()
    assert lost_later > 1000


def test_what_a_move_pushed_out_does_not_come_back() -> None:
    there, back = (np.array([[1, 0, shift], [0, 1, 0], [0, 0, 1]]) for shift in (0.25, -0.25))
    geometry = reduce(Geometry.move, (there, back), Geometry((WIDTH, HEIGHT)))
    images = pictures()[:1]
    views = resample(images, stack([geometry.moved]), frames_of([geometry]), FILL, torch.tensor([True]))
    assert torch.equal(views[..., WIDTH // 4 :], images[..., WIDTH // 4 :])
    assert (views[..., : WIDTH // 4] == torch.tensor(FILL).view(3, 1, 1)).all()


@pytest.mark.parametrize("number", [1, 2, 3])
def test_views_show_what_their_labels_are_taken_from(number: int) -> None:
    """A picture whose colours are coordinates is cropped and flipped by Pillow and moved here: tokens show the places
    that `Geometry.matrix` has for them."""
    transform, whole = train_transform(PLAIN), 0
    for seed in range(12):
        with drawn_from(seed):
            seen = transform(coordinates())
        geometry = reduce(Geometry.move, _steps(several(seed, number, (112, 112))), seen.geometry)
        maps, frames = stack([geometry.moved]), frames_of([geometry])
        view = resample(as_tensor(seen.image)[None], maps, frames, (0, 0, 0), torch.tensor([seed % 2 == 0]))[0]
        shown, inside, _ = seen_at((view / 255).clamp(max=1), 14)
        error = np.abs(shown + 0.5 / 255 - middles(geometry.matrix, 14))[inside]  # it is rounded down
        assert error.max(initial=0) <= 0.1 / 14
        whole += inside.sum()
    assert whole > 300


def _steps(geometry: Geometry) -> list[Matrix]:
    """Each move of a geometry: a frame is a product of those that follow."""
    after = [*geometry.frames[1:], np.eye(3)]
    return [frame @ np.linalg.inv(rest) for frame, rest in zip(geometry.frames, after, strict=True)]


@pytest.mark.parametrize(("height", "width"), [(224, 224), (90, 120), (7, 300)])
def test_places_are_those_of_the_matrices(height: int, width: int) -> None:
    """As exactly as single precision goes."""
    maps = [several(seed, 3, (width, height)).moved for seed in range(20)]
    scale, _ = _constants(height, width, FILL, torch.device("cpu"))
    places = _places(stack(maps)[:, :2] * scale, height, width) / torch.tensor([width, height]).view(2, 1, 1)
    expected = np.stack([matrix @ centres(height, width) for matrix in maps])[:, :2].reshape(-1, 2, height, width)
    np.testing.assert_allclose(places.numpy(), expected, atol=2e-6)


# ---- on a device


@pytest.mark.parametrize("later", [0, 2])
def test_nothing_waits_and_launches_do_not_grow(later: int) -> None:
    geometries = [several(seed, 1 + later, (WIDTH, HEIGHT)) for seed in range(COUNT)]
    check_on_device(
        lambda images, maps, frames, cubic: resample(images, maps, frames, FILL, cubic),
        *(pictures(), stack([geometry.moved for geometry in geometries]), frames_of(geometries)),
        torch.arange(COUNT) % 2 == 0,
    )
