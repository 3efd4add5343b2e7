"""What batches become on their device is, to the byte, what Pillow makes of each image."""

import random
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps
from skimage import data as photographs
from timm.data import auto_augment
from torch import Tensor
from torchvision.transforms import functional as F

from labelflow.chance import drawn_from
from labelflow.data import batched
from labelflow.data.geometry import GEOMETRIC, operations
from labelflow.data.transforms import _posterize
from labelflow.data.world import scene
from pretend import DEVICE, Log, pretending

POLICIES = ["rand-m9-mstd0.5-inc1", "rand-m7-n3-mstd101-t3a", "original", "original-mstd0.5", "v0", "3a"]
HEIGHT, WIDTH = 40, 56
CORNERS = [0.0, 0.1, 0.5, 1.0, 1.9]


def tensor(image: Image.Image | np.ndarray) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def picture(image: Tensor) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).numpy())


@cache
def pictures() -> Tensor:
    """Photographs, a scene, noise, few colours, one colour: (B, 3, H, W)"""
    rng = np.random.default_rng(0)
    shape = (HEIGHT, WIDTH, 3)
    images = [
        Image.fromarray(photographs.astronaut()).resize((WIDTH, HEIGHT)),
        Image.fromarray(photographs.chelsea()).resize((WIDTH, HEIGHT)),
        scene(0, "train", 0, (HEIGHT, WIDTH)).image,
        rng.integers(0, 256, shape, np.uint8),
        rng.integers(100, 108, shape, np.uint8),
        rng.choice(np.array([3, 200], np.uint8), shape),
        np.broadcast_to(np.linspace(20, 235, WIDTH).astype(np.uint8)[:, None], shape),
        *(np.full(shape, value, np.uint8) for value in (0, 77, 255)),
    ]
    return torch.stack([tensor(image) for image in images])


COUNT = len(pictures())
FACTORS = st.lists(st.floats(0, 3) | st.sampled_from(CORNERS), min_size=COUNT, max_size=COUNT)


def check(made: Tensor, expected: Sequence[Image.Image]) -> None:
    assert made.dtype == torch.uint8
    assert torch.equal(made, torch.stack([tensor(image) for image in expected]))


def check_factors(adjust: Callable[[Tensor, Tensor], Tensor], pillows: Callable, factors: list[float]) -> None:
    """A factor for each picture; one image alone, too; and what came in is left alone."""
    images = pictures().clone()
    expected = [pillows(picture(image), factor) for image, factor in zip(images, factors, strict=True)]
    check(adjust(images, torch.tensor(factors)), expected)
    check(adjust(images[:1], torch.tensor(factors[:1])), expected[:1])
    assert torch.equal(images, pictures())


# ---- tables

CHANGES = st.one_of(
    st.just((auto_augment.invert,)),
    st.tuples(st.just(_posterize), st.integers(0, 8)),
    st.tuples(st.just(auto_augment.solarize), st.integers(0, 256)),
    st.tuples(st.just(auto_augment.solarize_add), st.integers(0, 128)),
    st.tuples(st.just(auto_augment.brightness), st.floats(0, 3) | st.sampled_from(CORNERS)),
)


@given(st.lists(CHANGES, min_size=COUNT, max_size=COUNT))
def test_changes_of_bytes(changes: list[tuple]) -> None:
    images = pictures()
    tables = torch.from_numpy(np.stack([batched.table(*change) for change in changes]))
    expected = [change(picture(image), *given) for image, (change, *given) in zip(images, changes, strict=True)]
    check(batched.apply_tables(images, tables), expected)


def test_each_channel_has_its_table() -> None:
    images = pictures()
    tables = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (COUNT, 3, 256), np.uint8))
    expected = [picture(image).point(table.flatten().tolist()) for image, table in zip(images, tables, strict=True)]
    check(batched.apply_tables(images, tables), expected)


def test_histograms() -> None:
    images = pictures()
    expected = [picture(image).histogram() for image in images]
    assert torch.equal(batched.histograms(images).flatten(1), torch.tensor(expected, dtype=torch.int32))


PALETTES = st.lists(st.integers(0, 255), min_size=1, max_size=12, unique=True)


@given(PALETTES, st.integers(1, 60), st.integers(1, 60), st.integers(0, 2**32 - 1))
def test_equalize_of_few_colours(palette: list[int], height: int, width: int, seed: int) -> None:
    """Each colour as often as another draw says: steps are small, large, or nothing."""
    rng = np.random.default_rng(seed)
    chance = rng.dirichlet(np.full(len(palette), 0.5), 2)
    pixels = [rng.choice(np.array(palette, np.uint8), (3, height, width), p=each) for each in chance]
    images = torch.from_numpy(np.stack(pixels))
    expected = [ImageOps.equalize(picture(image)) for image in images]
    check(batched.apply_tables(images, batched.equalize_tables(images)), expected)


def test_equalize() -> None:
    images = pictures()
    expected = [auto_augment.equalize(picture(image)) for image in images]
    check(batched.apply_tables(images, batched.equalize_tables(images)), expected)


def test_autocontrast() -> None:
    images = pictures()
    expected = [auto_augment.auto_contrast(picture(image)) for image in images]
    check(batched.apply_tables(images, batched.autocontrast_tables(images)), expected)


def test_autocontrast_between_any_two_bytes() -> None:
    """Whatever the darkest and the brightest one are: Pillow's rounding is a matter of the last bit at times."""
    rng = np.random.default_rng(2)
    low, high = np.sort(rng.integers(0, 256, (2, 1500, 3, 1)), axis=0)
    images = torch.from_numpy(np.clip(np.arange(256), low, high).astype(np.uint8)).view(-1, 3, 16, 16)
    expected = [ImageOps.autocontrast(picture(image)) for image in images]
    check(batched.apply_tables(images, batched.autocontrast_tables(images)), expected)


@given(FACTORS)
def test_contrast(factors: list[float]) -> None:
    def adjust(images: Tensor, factors: Tensor) -> Tensor:
        return batched.apply_tables(images, batched.contrast_tables(images, factors))

    check_factors(adjust, auto_augment.contrast, factors)
    check_factors(adjust, F.adjust_contrast, factors)  # as ColorJitter has it


def test_the_mean_grey_is_rounded_up_from_a_half() -> None:
    images = torch.tensor([100, 101], dtype=torch.uint8).expand(1, 3, 1, 2)
    tables = batched.contrast_tables(images, torch.zeros(1))
    assert tables.unique().tolist() == [101]
    check(batched.apply_tables(images, tables), [auto_augment.contrast(picture(images[0]), 0.0)])


# ---- blends


@given(FACTORS)
def test_saturation(factors: list[float]) -> None:
    check_factors(batched.adjust_saturation, auto_augment.color, factors)
    check_factors(batched.adjust_saturation, F.adjust_saturation, factors)


def test_every_grey() -> None:
    """All colours in steps of 5, of which Pillow rounds some greys up and some down."""
    images = torch.cartesian_prod(*[torch.arange(0, 256, 5)] * 3).byte().T.reshape(1, 3, 52 * 4, -1)
    check(batched.adjust_saturation(images, torch.zeros(1)), [auto_augment.color(picture(images[0]), 0.0)])


@given(FACTORS)
def test_sharpness(factors: list[float]) -> None:
    check_factors(batched.adjust_sharpness, auto_augment.sharpness, factors)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (2, 5), (5, 2), (3, 3), (4, 3)])
def test_small_images(height: int, width: int) -> None:
    images = pictures()[3:4, :, :height, :width]
    check(batched.adjust_sharpness(images, torch.tensor([0.3])), [auto_augment.sharpness(picture(images[0]), 0.3)])
    weights = torch.from_numpy(batched.blur_weights(1.9))[None]
    check(batched.gaussian_blur(images, weights), [auto_augment.gaussian_blur(picture(images[0]), 1.9)])


# ---- what looks at neighbours

RADII = st.floats(0.1, 2.0) | st.sampled_from([0.0, 0.1, 1.2247, 1.2248, 2.0])  # boxes grow by a pixel in between


@given(st.lists(RADII, min_size=COUNT, max_size=COUNT))
def test_gaussian_blur(radii: list[float]) -> None:
    images = pictures()
    weights = torch.from_numpy(np.stack([batched.blur_weights(radius) for radius in radii]))
    expected = [auto_augment.gaussian_blur(picture(image), radius) for image, radius in zip(images, radii, strict=True)]
    check(batched.gaussian_blur(images, weights), expected)


def test_a_larger_blur_is_refused() -> None:
    with pytest.raises(AssertionError, match=r"2\.5"):
        batched.blur_weights(2.5)


def test_flip() -> None:
    images, mirrored = pictures(), torch.arange(COUNT) % 3 == 0
    expected = [
        ImageOps.mirror(picture(image)) if yes else picture(image) for image, yes in zip(images, mirrored, strict=True)
    ]
    check(batched.flip(images, mirrored), expected)


# ---- what timm draws


class Call(NamedTuple):
    operation: Callable[..., Image.Image]
    arguments: tuple[Any, ...]
    options: dict[str, Any]


def drawn_calls(policy: str, count: int) -> list[Call]:
    """What one of timm's policies does to images, in its own draws, one image after the other."""
    options = {"translate_const": 25, "img_mean": (124, 116, 104)}
    make = auto_augment.rand_augment_transform if policy[:4] == "rand" else auto_augment.auto_augment_transform
    step, calls = make(policy, options), []

    def record(operation: Callable, image: Image.Image, *arguments: Any, **options: Any) -> Image.Image:
        calls.append(Call(operation, arguments, options))
        return image

    for operation in operations(step):
        operation.aug_fn = partial(record, operation.aug_fn)
    with drawn_from(0):
        for _ in range(count):
            step(Image.new("RGB", (2, 2)))
    return calls


def argument(calls: Sequence[Call]) -> Tensor:
    return torch.tensor([call.arguments[0] for call in calls])


def by_table(images: Tensor, calls: Sequence[Call]) -> Tensor:
    tables = [batched.table(posterize(call.operation), *call.arguments) for call in calls]
    return batched.apply_tables(images, torch.from_numpy(np.stack(tables)))


def posterize(operation: Callable) -> Callable:
    """Instead of timm's, which fails for 0 bits since Pillow 13."""
    return _posterize if operation is auto_augment.posterize else operation


def desaturate(images: Tensor, calls: Sequence[Call]) -> Tensor:
    return batched.adjust_saturation(images, torch.tensor([1 - call.arguments[0] for call in calls]))


def blur(images: Tensor, calls: Sequence[Call]) -> Tensor:
    return batched.gaussian_blur(
        images, torch.from_numpy(np.stack([batched.blur_weights(call.arguments[0]) for call in calls]))
    )


BATCHED: dict[Callable, Callable[[Tensor, Sequence[Call]], Tensor]] = {
    **dict.fromkeys(
        [
            auto_augment.invert,
            auto_augment.posterize,
            auto_augment.solarize,
            auto_augment.solarize_add,
            auto_augment.brightness,
        ],
        by_table,
    ),
    auto_augment.equalize: lambda images, calls: batched.apply_tables(images, batched.equalize_tables(images)),
    auto_augment.auto_contrast: lambda images, calls: batched.apply_tables(images, batched.autocontrast_tables(images)),
    auto_augment.contrast: lambda images, calls: batched.apply_tables(
        images, batched.contrast_tables(images, argument(calls))
    ),
    auto_augment.color: lambda images, calls: batched.adjust_saturation(images, argument(calls)),
    auto_augment.desaturate: desaturate,
    auto_augment.sharpness: lambda images, calls: batched.adjust_sharpness(images, argument(calls)),
    auto_augment.gaussian_blur: blur,
}


def with_radius(call: Call) -> Call:
    """A blur whose radius timm draws as it blurs."""
    if call.operation is not auto_augment.gaussian_blur_rand:
        return call
    return Call(auto_augment.gaussian_blur, (random.Random(0).uniform(0.1, 2 * call.arguments[0]),), call.options)


@pytest.mark.parametrize("policy", POLICIES)
def test_whatever_timm_draws(policy: str) -> None:
    calls = [with_radius(call) for call in drawn_calls(policy, 300) if call.operation not in GEOMETRIC]
    assert len(calls) > 100
    for operation in dict.fromkeys(call.operation for call in calls):
        some = [call for call in calls if call.operation is operation]
        images = pictures()[torch.arange(len(some)) % COUNT]
        expected = [
            posterize(operation)(picture(image), *call.arguments, **call.options)
            for image, call in zip(images, some, strict=True)
        ]
        check(BATCHED[operation](images, some), expected)


def test_every_operation_of_timms_is_there() -> None:
    assert set(auto_augment.NAME_TO_OP.values()) == {*BATCHED, *GEOMETRIC, auto_augment.gaussian_blur_rand}


# ---- on a device

ON_DEVICE: dict[str, Callable[..., Tensor]] = {
    "tables": lambda images, factors: batched.apply_tables(images, images[:, 0, :16, :16].flatten(1)),
    "tables of channels": lambda images, factors: batched.apply_tables(images, images[:, :, :16, :16].flatten(2)),
    "histograms": lambda images, factors: batched.histograms(images),
    "equalize": lambda images, factors: batched.equalize_tables(images),
    "autocontrast": lambda images, factors: batched.autocontrast_tables(images),
    "contrast": batched.contrast_tables,
    "saturation": batched.adjust_saturation,
    "sharpness": batched.adjust_sharpness,
    "blur": lambda images, factors: batched.gaussian_blur(images, factors.int()[:, None].expand(-1, 3)),
    "flip": lambda images, factors: batched.flip(images, factors > 1),
}


def check_on_device(call: Callable[..., Tensor], *inputs: Tensor) -> None:
    """Nothing waits, few or many images launch as many kernels, and these make what the CPU makes."""
    logs: list[Log] = []
    for count in (1, 2, COUNT):
        with pretending() as log:
            there = [part[:count].to(DEVICE) for part in inputs]
            call(*there)  # what is made once
            log.clear()
            made = call(*there)
            logs.append(log)
            assert (log.waits, log.meetings, log.host_scalars) == ([], [], [])
            assert made.device.type == DEVICE
            assert torch.equal(made.cpu(), call(*(part[:count] for part in inputs)))
    assert logs[0].launches == logs[1].launches == logs[2].launches


@pytest.mark.parametrize("name", ON_DEVICE)
def test_nothing_waits_and_launches_do_not_grow(name: str) -> None:
    check_on_device(ON_DEVICE[name], pictures(), torch.linspace(0, 2, COUNT))
