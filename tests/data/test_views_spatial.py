"""The second view of an image: the same crop, flip and moves, drawn once, and no changes of colours."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy import ndarray
from PIL import Image
from timm.data import auto_augment, create_transform
from timm.data.auto_augment import AugmentOp

from labelflow.chance import drawn_from
from labelflow.data import Data, World, train_batches, train_transform
from labelflow.data.deferred import Plan
from labelflow.data.geometry import Geometry, OnImage, Pair, Tracked, operations
from labelflow.data.growth import Growth
from labelflow.data.transforms import Transform, _posterize

MOVES = ["ShearX", "ShearY", "TranslateXRel", "TranslateYRel", "TranslateX", "TranslateY", "Rotate"]
MOVING = [getattr(auto_augment, name) for name in ("shear_x", "shear_y", "translate_x_rel", "translate_y_rel")]
MOVING += [auto_augment.translate_x_abs, auto_augment.translate_y_abs, auto_augment.rotate]
FILL = (124, 116, 104)  # ImageNet's mean colour
RANDOM = Data(image_size=32, scale=(0.3, 1.0), erasing=0.5)
POLICIES = {
    "RandAugment": {},
    "three operations, any interpolation": {"auto_augment": "rand-m9-n3-mstd101", "interpolation": "random"},
    "AutoAugment": {"auto_augment": "original-mstd0.5"},
    "3-Augment and jitter": {"auto_augment": "3a", "color_jitter": 0.4},
    "jitter": {"auto_augment": "", "color_jitter": 0.4},
    "simple crop": {"crop": "simple"},
}


def picture(seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (60, 44, 3), np.uint8))


def viewed(transform: Transform, seed: int) -> Tracked:
    with drawn_from(seed):
        return transform(transform.decode(picture(seed)))


def pixels(image: Any) -> ndarray:
    """(H, W, 3), done where it was only recorded."""
    if isinstance(image, ndarray):
        return image
    return Plan.stack([image]).apply(image.pixels[None].clone(), FILL)[0].permute(1, 2, 0).numpy()


def thrown_away(change: Any) -> Any:
    """Draws what a change draws, and leaves the image as it is."""

    def unchanged(image: Any, *arguments: Any, **options: Any) -> Any:
        change(image, *arguments, **options)
        return image

    return unchanged


def by_timm(data: Data, seed: int) -> ndarray:
    """timm's own transforms, whose changes of colours are made and thrown away."""
    crop, flip, *steps, _ = create_transform(
        data.image_size,
        is_training=True,
        scale=data.scale,
        color_jitter=data.color_jitter or None,
        auto_augment=data.auto_augment or None,
        interpolation=data.interpolation,
        use_prefetcher=True,
    ).transforms
    for step in steps:
        for operation in operations(step):
            if operation.aug_fn not in MOVING:
                change = _posterize if operation.aug_fn is auto_augment.posterize else operation.aug_fn
                operation.aug_fn = thrown_away(change)
    steps = [step if operations(step) else thrown_away(step) for step in steps]
    with drawn_from(seed):
        image = picture(seed)
        for step in (crop, flip, *steps):
            image = step(image)
    return np.asarray(image)


def without_colours(data: Data) -> Transform:
    """A transform of ours whose changes of colours are made and thrown away."""
    transform: Any = train_transform(data)
    for step in transform.steps:
        for one in operations(getattr(step, "step", step)):
            if isinstance(one.aug_fn, OnImage):
                one.aug_fn.step = thrown_away(one.aug_fn.step)
        if isinstance(step, OnImage):
            step.step = thrown_away(step.step)
    return transform


@pytest.mark.parametrize("augment", ["workers", "device"])
@pytest.mark.parametrize("policy", POLICIES)
def test_it_is_the_view_with_colours_left_alone_and_the_same_draws(policy: str, augment: str) -> None:
    if (policy, augment) == ("simple crop", "device"):
        pytest.skip("workers alone make simple crops")
    data = replace(RANDOM, augment=augment, **POLICIES[policy])
    both, alone, moved = train_transform(data, spatial=True), train_transform(data), without_colours(data)
    differs = 0
    for seed in range(24):
        pair, single = viewed(both, seed), viewed(alone, seed)
        assert isinstance(pair.image, Pair)
        image, spatial = map(pixels, pair.image)
        assert np.array_equal(image, pixels(single.image))  # what is trained on does not know of the other
        assert pair.patch == single.patch
        assert np.array_equal(pair.geometry.matrix, single.geometry.matrix)
        assert np.array_equal(spatial, pixels(viewed(moved, seed).image))
        if augment == "workers" and policy != "simple crop":
            assert np.array_equal(spatial, by_timm(data, seed))
        differs += not np.array_equal(image, spatial)
    assert differs > 8


@settings(max_examples=25, deadline=None)
@given(
    names=st.lists(st.sampled_from(MOVES), min_size=1, max_size=4, unique=True),
    seed=st.integers(0, 999),
    augment=st.sampled_from(["workers", "device"]),
)
def test_moves_alone_make_two_equal_views(names: list[str], seed: int, augment: str) -> None:
    transform: Any = train_transform(replace(RANDOM, augment=augment), spatial=True)
    (policy,) = [step.step for step in transform.steps if operations(getattr(step, "step", None))]
    policy.ops = [AugmentOp(name, prob=1.0, magnitude=9, hparams=policy.ops[0].hparams) for name in names]
    policy.num_layers = len(names)
    image, spatial = viewed(transform, seed).image
    assert spatial is image  # and nothing was computed twice


def test_colours_before_a_move_do_not_reach_it() -> None:
    grey = picture(0)
    tracked = Tracked(Pair(grey, grey), Geometry(grey.size))
    changed = OnImage(lambda image: Image.new("RGB", image.size))(tracked).rotate(10)
    assert np.asarray(changed.image.image).max() == 0
    assert np.array_equal(np.asarray(changed.image.spatial), np.asarray(grey.rotate(10)))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("augment", ["workers", "device"])
def test_batches(augment: str, workers: int) -> None:
    """Of growing images, erased in one view alone; whoever does not ask for them gets none."""
    how: dict[str, Any] = {"batch": 4, "micro_batch": 4, "updates": 4, "seed": 3, "growth": Growth((24, 32), epochs=2)}
    data = replace(RANDOM, erasing=1.0, augment=augment, workers=workers)
    views, pairs = (
        [batch.to(torch.device("cpu")) for batch in train_batches(World("train", 8, 32), data, **how, spatial=spatial)]
        for spatial in (False, True)
    )
    plain = replace(data, erasing=0.0, auto_augment="", color_jitter=0.0)
    unmoved = [batch.to(torch.device("cpu")) for batch in train_batches(World("train", 8, 32), plain, **how)]
    same = 0
    for view, pair, crop in zip(views, pairs, unmoved, strict=True):
        assert view.spatial is None
        assert pair.spatial is not None
        assert pair.spatial.shape == pair.images.shape
        assert torch.equal(pair.images, view.images)
        assert all((one != other).any() for one, other in zip(pair.images, pair.spatial, strict=True))
        same += sum(torch.equal(one, other) for one, other in zip(pair.spatial, crop.images, strict=True))
    assert same  # where nothing moved the image, it is the crop
    assert [pair.spatial.shape[2] for pair in pairs] == [24, 24, 32, 32]
