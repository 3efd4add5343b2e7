"""What workers record and the device does is what timm does, image by image, with the same draws."""

import random
from dataclasses import replace
from pathlib import Path
from pickle import dumps, loads
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import auto_augment, create_transform
from torch import Tensor

from labelflow.chance import drawn_from
from labelflow.data import Data, World, train_batches, train_transform
from labelflow.data.batches import Draw
from labelflow.data.deferred import ASK_THE_IMAGE, STEPS, Deferred, Move, Plan
from labelflow.data.geometry import Chosen, Tracked
from labelflow.data.images import to_rgb
from labelflow.data.normalise import Normalise
from labelflow.data.transforms import _posterize
from labelflow.data.views import PixelBatch, View, Views, collate
from pretend import DEVICE, pretending

CPU = torch.device("cpu")
WORKERS = Data(image_size=64, scale=(0.3, 1.0), erasing=0.0)
ON_DEVICE = replace(WORKERS, augment="device")
FILL = (124, 116, 104)  # ImageNet's mean colour
HOW: dict[str, Any] = {"batch": 8, "micro_batch": 4, "updates": 2, "seed": 3}


def picture(width: int = 150, height: int = 110, seed: int = 0) -> Image.Image:
    """Smooth in some places and not in others."""
    y, x = np.indices((height, width)) / 40
    waves = [np.sin(x * (1 + band) + seed) + np.cos(y * (2 - band) - seed) for band in range(3)]
    pixels = 128 + 45 * np.stack(waves, 2)
    pixels[20:60, 30:80] = np.random.default_rng(seed).integers(0, 255, (40, 50, 1))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def recorded(data: Data, image: Image.Image, seed: int) -> Tracked:
    transform = train_transform(replace(data, augment="device"))
    with drawn_from(seed):
        return transform(transform.decode(image.copy()))


def done(views: list[Tracked], data: Data) -> Tensor:
    """(B, 3, H, W) uint8"""
    normalise = Normalise(data.mean, data.std)
    batch = collate([View(view.image, 0, 1.0, patch=view.patch) for view in views], normalise)
    assert batch.plan
    return batch.plan.apply(batch.pixels.clone(), normalise.mean_colour)


def by_timm(data: Data, crop: Tensor, image: Image.Image, seed: int) -> Tensor:
    """timm's own transforms, but on our crop, which torch resized."""
    crop_step, *steps = create_transform(
        data.image_size,
        is_training=True,
        scale=data.scale,
        color_jitter=data.color_jitter or None,
        auto_augment=data.auto_augment or None,
        interpolation=data.interpolation,
        use_prefetcher=True,
    ).transforms
    for step in steps:
        for operation in [*getattr(step, "ops", []), *(op for policy in getattr(step, "policy", []) for op in policy)]:
            if operation.name.startswith("Posterize"):
                operation.aug_fn = _posterize
    with drawn_from(seed):
        crop_step.get_params(image, crop_step.scale, crop_step.ratio)
        if data.interpolation == "random":
            random.choice(crop_step.interpolation)
        seen: Any = Image.fromarray(crop.permute(1, 2, 0).numpy())
        for step in steps:
            seen = step(seen)
    return seen


@pytest.mark.parametrize(
    "changes",
    [
        {"auto_augment": "rand-m9-mstd0.5-inc1"},
        {"auto_augment": "rand-m9-mstd0.5-inc1", "interpolation": "random"},
        {"auto_augment": "rand-m5-n3-mstd101"},
        {"auto_augment": "original-mstd0.5"},
        {"auto_augment": "v0"},
        {"auto_augment": "3a"},
        {"auto_augment": "", "color_jitter": 0.4},
        {"auto_augment": "", "color_jitter": 0.0},
    ],
    ids=lambda changes: " ".join(map(str, changes.values())) or "none",
)
def test_the_device_makes_timms_pixels_of_timms_draws(changes: dict[str, Any]) -> None:
    """To the byte; within 1 where an image is moved. What colours make of a difference of 1 may be more (posterize and
    equalize tear neighbours apart); moves in a row are compared with one move of Pillow's, below."""
    data, views, expected = replace(WORKERS, **changes), [], []
    for seed in range(48):
        views.append(recorded(data, picture(seed=seed), seed))
        expected.append(by_timm(data, views[-1].image.pixels, picture(seed=seed), seed))
    compared = 0
    for view, image, other in zip(views, done(views, data), expected, strict=True):
        difference, moves = (
            (image.int() - other.int()).abs(),
            [step for step in view.image.steps if isinstance(step, Move)],
        )
        if any(len(move.frames) > 1 for move in moves):
            continue
        compared += 1
        if not moves or moves == [view.image.steps[-1]]:
            assert difference.max() <= len(moves), view.image.steps
        else:
            assert (difference <= 2).float().mean() > 0.95, view.image.steps
    assert compared > 36


@pytest.mark.parametrize("cubic", [True, False])
def test_moves_in_a_row_are_one_move_of_pillows(cubic: bool) -> None:
    """By the product of their matrices, within 1; outside of a frame in between, nothing is left."""
    image, how = picture().crop((20, 20, 84, 84)), Image.Resampling.BICUBIC if cubic else Image.Resampling.BILINEAR
    for seed in range(8):
        degrees, shear, pixels = np.random.default_rng(seed).uniform((-30, -0.3, -20), (30, 0.3, 20))
        seen = Deferred(torch.from_numpy(np.array(image)).permute(2, 0, 1))
        seen = seen.rotate(degrees, how, FILL).transform((64, 64), 0, (1, shear, 0, 0, 1, 0), how, FILL)
        seen = seen.transform((64, 64), 0, (1, 0, pixels, 0, 1, 0), how, FILL)
        (move,) = seen.steps
        (made,) = Plan.stack([seen]).apply(seen.pixels[None].clone(), FILL)
        data = (np.diag([64, 64, 1.0]) @ move.frames[0] @ np.diag([1 / 64, 1 / 64, 1]))[:2].ravel()
        expected = image.transform((64, 64), Image.Transform.AFFINE, tuple(data), resample=how, fillcolor=FILL)
        y, x = (np.indices((64, 64)).reshape(2, -1) + 0.5) / 64
        places = [(frame @ np.stack([x, y, np.ones_like(x)]))[:2] for frame in move.frames]
        inside = np.all([(np.abs(place - 0.5) < 0.5 - 1e-4).all(0) for place in places], 0)
        outside = np.any([(np.abs(place - 0.5) > 0.5 + 1e-4).any(0) for place in places], 0)
        difference = np.abs(made.flatten(1).numpy().astype(int) - np.asarray(expected).reshape(-1, 3).T.astype(int))
        assert difference[:, inside].max() <= 1
        assert (made.flatten(1)[:, outside] == torch.tensor(FILL)[:, None]).all()
        assert inside.mean() > 0.3


def test_moves_in_a_row_are_one_resampling_and_colours_part_them() -> None:
    """Rotate, shear, translate: what is sampled once is nearer to the truth than what is sampled three times."""
    data = replace(WORKERS, image_size=96, scale=(1.0, 1.0), ratio=(1.0, 1.0), auto_augment="rand-m9", flip=0.0)

    def view(*names: str, seed: int) -> Tracked:
        transform = train_transform(replace(data, augment="device"))
        (chosen,) = (step for step in transform.steps if isinstance(step, Chosen))
        known = {operation.name: operation for operation in chosen.step.ops}
        steps = [known[name] for name in names]
        with drawn_from(seed):
            seen = transform.steps[0](transform.decode(smooth()))
            for step in steps:
                step.prob = 1.0
                seen = step(seen)
        return seen

    def smooth() -> Image.Image:
        y, x = np.indices((96, 96)) + 0.5
        return Image.fromarray(np.stack([2.6 * x, 2.6 * y, np.full(x.shape, 200)], 2).round().astype(np.uint8))

    apart = view("Rotate", "Invert", "ShearX", seed=1).image.steps
    assert [type(step).__name__ for step in apart] == ["Move", "Step", "Move"]
    for seed in range(6):
        seen = view("Rotate", "ShearX", "TranslateYRel", seed=seed)
        (move,) = seen.image.steps
        assert len(move.frames) == 3
        np.testing.assert_allclose(move.frames[0], seen.geometry.moved)
        (image,) = done([seen], data).double()
        y, x = (np.indices((96, 96)).reshape(2, -1) + 0.5) / 96
        places = np.stack([x, y, np.ones_like(x)])
        inside = np.logical_and.reduce(
            [(np.abs((frame @ places)[:2] - 0.5) < 0.5 - 1 / 96).all(0) for frame in move.frames]
        )
        outside = np.logical_or.reduce(
            [(np.abs((frame @ places)[:2] - 0.5) > 0.5 + 1 / 96).any(0) for frame in move.frames]
        )
        shown = image[:2].flatten(1).numpy() / 2.6 / 96
        assert np.abs(shown - (move.frames[0] @ places)[:2])[:, inside].max() < 0.1 / 14
        assert (image.flatten(1)[:, outside] == torch.tensor(FILL)[:, None]).all()
        assert inside.mean() > 0.2
        assert outside.mean() > 0.1


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
@pytest.mark.parametrize("kind", ["jpg", "png", "tif"])
def test_large_jpegs_are_decoded_at_a_reduced_size(tmp_path: Path, kind: str, orientation: int) -> None:
    """And their geometry is right to a tenth of a cell, whichever way a camera was held."""
    width, height, path = 1210, 803, tmp_path / f"large.{kind}"
    y, x = np.indices((height, width)) + 0.5
    pixels = np.stack([255 * x / width, 255 * y / height, np.full(x.shape, 128)], 2).round().astype(np.uint8)
    image, exif = Image.fromarray(pixels), Image.Exif()
    exif[0x0112] = orientation
    turned = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}
    stored = image.transpose(turned[orientation]) if orientation in turned else image  # as a camera stores it
    stored.save(path, exif=exif, **({"quality": 95, "subsampling": 0} if kind == "jpg" else {}))
    reduced = 0
    for seed in range(12):
        transform = train_transform(replace(ON_DEVICE, auto_augment="", color_jitter=0.0, image_size=112))
        with Image.open(path) as opened, drawn_from(seed):
            seen = transform(transform.decode(opened))
            reduced += max(opened.size) < 1000
        assert seen.geometry.size == (width, height)
        (view,) = done([seen], ON_DEVICE).double() / 255
        tokens = view[:2].unfold(1, 8, 8).unfold(2, 8, 8).mean((3, 4)).flatten(1).numpy()  # (2, 14·14)
        middles = (np.indices((14, 14)).reshape(2, -1)[::-1] + 0.5) / 14
        expected = (seen.geometry.matrix @ np.stack([*middles, np.ones(14 * 14)]))[:2]
        assert np.abs(tokens - expected).max() < 0.1 / 18
    assert (reduced > 6) == (kind == "jpg")


def test_small_crops_are_not_reduced() -> None:
    """The crop is resized from what Pillow decodes, with differences of 1 here and there from Pillow's own resizing."""
    image, data = picture(400, 300), replace(ON_DEVICE, auto_augment="", color_jitter=0.0, flip=0.0)
    for seed in range(10):
        seen = recorded(data, image, seed)
        top, left, height, width = np.multiply(seen.geometry.box, (300, 400, 300, 400)).round().astype(int)
        expected = image.crop((left, top, left + width, top + height)).resize((64, 64), Image.Resampling.BICUBIC)
        difference = (seen.image.pixels.int() - torch.from_numpy(np.array(expected)).permute(2, 0, 1).int()).abs()
        assert (difference <= 1).float().mean() > 0.98


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_and_resumes_make_no_difference(workers: int) -> None:
    source = World("train", 24, 64)

    def read(workers: int, first_update: int) -> list[Tensor]:
        data = Data(image_size=32, augment="device", workers=workers)
        batches = train_batches(source, data, **HOW | {"updates": 4}, first_update=first_update)
        return [batch.to(CPU).images for batch in batches]

    alone = read(0, 0)
    assert all(torch.equal(one, other) for one, other in zip(alone, read(workers, 0), strict=True))
    assert all(torch.equal(one, other) for one, other in zip(alone[4:], read(workers, 2), strict=True))


def batch_of(count: int) -> PixelBatch:
    data = replace(ON_DEVICE, erasing=0.25)
    views = [recorded(data, picture(seed=seed), seed) for seed in range(count)]
    return collate([View(view.image, 0, 1.0, patch=view.patch) for view in views], Normalise(data.mean, data.std))


def test_the_host_waits_for_nothing_and_launches_do_not_grow_with_the_batch() -> None:
    launches = []
    for batch in (batch_of(64), batch_of(128)):
        assert batch.plan
        with pretending() as log:
            plan, pixels = batch.plan.to(torch.device(DEVICE)), batch.pixels.to(DEVICE)
            plan.apply(pixels.clone(), FILL)  # constants are made once
            before, waits = log.launches.total(), len(log.waits)
            made = plan.apply(pixels, FILL)
            launches.append(log.launches.total() - before)
            assert not log.waits[waits:]
            assert not log.meetings
            made = made.cpu()
        assert torch.equal(made, batch.plan.apply(batch.pixels, FILL))
    assert launches[1] < 1.2 * launches[0]


def test_images_come_as_they_were(tmp_path: Path) -> None:
    """Whatever their mode, and if they are the only one, and nothing is done with them."""
    data = replace(ON_DEVICE, auto_augment="", color_jitter=0.0, flip=0.0, scale=(1.0, 1.0), ratio=(1.5, 1.5))
    for mode in ("L", "RGBA", "CMYK", "P", "I;16"):
        image = Image.new("L", (90, 60), 100).convert(mode) if mode != "I;16" else Image.new(mode, (90, 60), 25600)
        seen = recorded(data, image, 0)
        assert seen.image == Deferred(seen.image.pixels)
        (made,) = done([seen], data)
        assert (made.int() - to_rgb(image).getpixel((0, 0))[0]).abs().max() <= 1


def test_tiny_images_have_views() -> None:
    """timm draws crops of 0 pixels of them at times."""
    for size in ((1, 1), (2, 1), (1, 50)):
        for seed in range(40):
            view = recorded(replace(ON_DEVICE, scale=(0.08, 1.0)), Image.new("RGB", size, (7, 8, 9)), seed)
            assert view.image.pixels.shape == (3, 64, 64)
            assert (view.image.pixels == torch.tensor([7, 8, 9]).view(3, 1, 1)).all()


def test_batches_survive_an_older_torchs_pinning() -> None:
    """Which turned tuples into lists."""
    batch = batch_of(8)
    assert batch.plan

    def pinned(part: Any) -> Any:
        if isinstance(part, tuple) and hasattr(part, "_fields"):
            return type(part)(*map(pinned, part))
        return list(map(pinned, part)) if isinstance(part, tuple | list) else part

    assert torch.equal(pinned(batch).to(CPU).images, batch.to(CPU).images)


def test_blending_views_is_for_workers() -> None:
    with pytest.raises(ValueError, match="augmix blends several views, which is done by workers only"):
        Data(augment="device", auto_augment="augmix-m5-w4-d2")


def test_every_operation_of_timms_is_known() -> None:
    """An operation that timm adds would be taken for a table of bytes."""
    names = ("invert", "posterize", "solarize", "solarize_add", "brightness")
    tables = {getattr(auto_augment, name) for name in names}
    assert set(auto_augment.NAME_TO_OP.values()) == tables | set(STEPS) | ASK_THE_IMAGE


@pytest.mark.parametrize("augment", ["workers", "device"])
def test_spawned_workers_make_the_same_batches(augment: str) -> None:
    """Where processes are not forked, views are pickled."""
    data = Data(image_size=32, augment=augment, workers=0)
    views = Views(World("train", 24, 64), train_transform(data), 0, training=True)
    normalise, draws = Normalise(data.mean, data.std), [Draw(place, 0, place) for place in range(24)]
    one, other = (collate(made.__getitems__(draws), normalise).to(CPU) for made in (views, loads(dumps(views))))
    assert torch.equal(one.images, other.images)
