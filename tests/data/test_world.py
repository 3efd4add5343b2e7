"""What the sample world promises."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelflow.data.world import CLASSES, Scene, World, scene

sizes = st.tuples(st.integers(16, 100), st.integers(16, 100))


def equal(one: Scene, other: Scene) -> bool:
    return all(np.array_equal(value, vars(other)[name]) for name, value in vars(one).items())


def halved(image: np.ndarray) -> np.ndarray:
    """Half as large: each pixel the mean of four."""
    return np.mean([image[row::2, column::2] for row in (0, 1) for column in (0, 1)], axis=0)


def test_a_scene_depends_on_seed_split_and_index_alone() -> None:
    world = World("train", 20, objects=2)
    forward = [world[index] for index in range(20)]
    backward = [world[index] for index in reversed(range(20))]
    assert all(map(equal, forward, reversed(backward)))
    one = scene(0, "train", 7)
    for other in (scene(1, "train", 7), scene(0, "val", 7), scene(0, "test", 7), scene(0, "train", 17)):
        assert not np.array_equal(other.image, one.image)
        assert not np.array_equal(other.mask, one.mask)


def test_classes_are_balanced() -> None:
    world = World("val", 30, size=16)
    assert len(set(CLASSES)) == len(world.classes) == 10
    assert np.bincount([drawn.label for drawn in world]).tolist() == [3] * 10


def test_colours_carry_no_class() -> None:
    scenes = [scene(0, "train", index, size=32) for index in range(1000)]
    colours = np.array([drawn.image[drawn.mask == 1].mean(0) for drawn in scenes])  # of the objects, (1000, 3)
    means = np.array([colours[label::10].mean(0) for label in range(10)])
    assert colours.std(0).min() > 15
    assert (means.var(0) / colours.var(0)).max() < 3 / 100  # by chance 1/100, for each is the mean of 100


@given(index=st.integers(0, 10**6), objects=st.integers(1, 4), size=sizes)
def test_every_object_is_visible_in_a_tight_box(index: int, objects: int, size: tuple[int, int]) -> None:
    drawn = scene(0, "test", index, size, objects)
    assert len(drawn.objects) == drawn.mask.max() == objects
    for number, box in enumerate(drawn.boxes, start=1):
        left, top, right, bottom = box.astype(int)
        inside = drawn.mask[top:bottom, left:right] == number
        assert inside.sum() == (drawn.mask == number).sum()
        assert inside.sum() > 0.007 * min(size) ** 2
        assert inside.any(0)[[0, -1]].all()
        assert inside.any(1)[[0, -1]].all()


def test_an_object_is_where_the_mask_says() -> None:
    """Objects are light and the ground is dark, so a mask that is moved tells them apart less well."""
    for drawn in World("train", 30):
        light = drawn.image.mean(2) / drawn.image.std()
        shown, moved = (light[mask == 1].mean() - light[mask == 0].mean() for mask in (drawn.mask, drawn.mask.T))
        assert shown > max(moved, 0.5)


@pytest.mark.parametrize("objects", [1, 3])
def test_a_scene_is_the_same_at_any_size(objects: int) -> None:
    for index in range(20):
        large, small = scene(0, "train", index, 192, objects), scene(0, "train", index, 96, objects)
        assert np.array_equal(large.objects, small.objects)
        assert np.abs(halved(large.image) - small.image).mean() < 3
        for number in range(1, 1 + objects):
            one, other = halved(large.mask == number) > 0.5, small.mask == number
            assert (one & other).sum() > 0.85 * (one | other).sum()


def test_images_are_loaded_by_index() -> None:
    world = World("train", 20, size=(32, 48))
    image, label = world.load(13)
    assert image.size == (48, 32)
    assert np.array_equal(np.asarray(image), world[13].image)
    assert (label, world.name(13), len(world)) == (3, "world/train/13", 20)
    for index in (-1, 20):
        with pytest.raises(IndexError, match="0 to 19"):
            world[index]


def test_an_image_is_drawn_once_while_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for two: the third is drawn again."""
    drawn = []

    def counted(seed: int, split: str, index: int, size: int, objects: int, scale: float) -> Scene:
        drawn.append(index)
        return scene(seed, split, index, size, objects, scale)

    monkeypatch.setattr("labelflow.data.world.scene", counted)
    monkeypatch.setattr("labelflow.data.world.KEPT", 2 * 16 * 16 * 3)
    world, asked = World("train", 20, size=16), (3, 4, 5, 3, 4, 5)
    images = [np.asarray(world.load(index)[0]) for index in asked]
    assert drawn == [3, 4, 5, 5]
    for index, image in zip(asked, images, strict=True):
        assert np.array_equal(image, scene(0, "train", index, size=16).image)


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        *[("length", 0), ("size", 15), ("size", (64, 8)), ("seed", -1), ("objects", 5)],
        *[("length", 16.5), ("length", "x"), ("size", "x"), ("seed", 0.5), ("objects", "a"), ("scale", "a")],
    ],
)
def test_wrong_arguments_are_told_what_is_right(key: str, wrong: object) -> None:
    with pytest.raises(ValueError, match=rf"^{key}.* must (be|lie) .*\d.*, not {re.escape(repr(wrong))}"):
        World(**{"split": "train", "length": 10, key: wrong})
    with pytest.raises(ValueError, match="train, val, test, not 'valid'"):
        World("valid", 10)
