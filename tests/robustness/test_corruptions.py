"""The corruptions: beside those of the package imagecorruptions, against naive definitions, and their laws."""

import ast
import colorsys
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy import ndarray
from numpy.random import default_rng
from PIL import Image
from scipy import ndimage

from golden_corruptions.make import SEVERITIES, seed_of, write_textures
from labelflow.robustness import corruptions
from labelflow.robustness.corruptions import (
    CORRUPTIONS,
    EXTRA,
    GROUPS,
    IMAGENET_C,
    blur,
    corrupt,
    digital,
    ice,
    parts,
    weather,
)

EVERY = [*CORRUPTIONS, *EXTRA]
CERTAIN = {  # nothing random in them
    *(
        "defocus_blur",
        "zoom_blur",
        "brightness",
        "contrast",
        "pixelate",
        "jpeg_compression",
        "gaussian_blur",
        "saturate",
    ),
}
REFERENCE = np.load(Path(__file__).parents[1] / "golden_corruptions" / "reference.npz")
ALMOST = {"zoom_blur", "spatter"}  # float32 sums in another order: a few values are truncated to their neighbours


class Legacy:
    """numpy's legacy stream under the names of a Generator's methods, which draws what the reference drew."""

    def __init__(self, seed: int) -> None:
        stream = np.random.RandomState(seed)
        self.normal, self.uniform, self.poisson = stream.normal, stream.uniform, stream.poisson
        self.integers, self.random = stream.randint, stream.random_sample


def distance(one: ndarray, other: ndarray) -> float:
    return float(abs(one.astype(float) - other).mean())


def colours(seed: int = 0, height: int = 32, width: int = 40) -> ndarray:
    return default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


@pytest.fixture(scope="module")
def photograph() -> ndarray:
    from skimage.data import chelsea

    return np.ascontiguousarray(chelsea()[40:168, 110:220])  # a cat's face


@pytest.mark.parametrize("name", EVERY)
def test_matches_the_reference(name: str, tmp_path: Path) -> None:
    write_textures(tmp_path)
    clean, expected = REFERENCE["clean"], REFERENCE[name]
    for severity in SEVERITIES:
        random = Legacy(seed_of(EVERY.index(name), severity))
        difference = abs(corrupt(clean, name, severity, random, frost=tmp_path).astype(int) - expected[severity - 1])
        assert difference.max() <= 1
        assert difference.mean() < (0.01 if name in ALMOST else 0.001)
        assert distance(clean, expected[severity - 1]) > 1  # or the comparison would say nothing


@pytest.mark.parametrize("name", EVERY)
def test_any_size_follows_its_seed_alone(name: str) -> None:
    for image in (colours(0, 32, 67), colours(1, 65, 33), np.repeat(colours(2)[..., :1], 3, 2)):
        kept = image.copy()
        first, again, other = (corrupt(image, name, 4, default_rng(seed)) for seed in (5, 5, 6))
        assert (first.dtype, first.shape) == (np.uint8, image.shape)
        assert (image == kept).all()
        assert (first == again).all()
        assert (first == other).all() == (name in CERTAIN)


@pytest.mark.parametrize("name", EVERY)
def test_views_black_and_white(name: str) -> None:
    image = colours()
    view = image[::-1, ::-1]
    view.flags.writeable = False
    assert (corrupt(view, name, 2, default_rng(0)) == corrupt(view.copy(), name, 2, default_rng(0))).all()
    for value in (0, 255):
        for severity in (1, 5):
            corrupt(np.full((33, 32, 3), value, np.uint8), name, severity, default_rng(0))  # warnings are errors


@pytest.mark.parametrize("name", EVERY)
def test_severity_takes_images_further_away(name: str, photograph: ndarray) -> None:
    images = [corrupt(photograph, name, severity, default_rng(1)) for severity in SEVERITIES]
    distances = [distance(image, photograph) for image in images]
    if name == "saturate":  # less colour at 1 and 2, more from 3 on
        assert distances[0] < distances[1]
        distances = distances[2:]
    if name == "frost":  # its weights on the image and on the ice add up to about as much light at each severity
        distances = [-np.corrcoef(image.flat, photograph.flat)[0, 1] for image in images]
    assert all(one < other for one, other in pairwise(distances[:: len(distances) // 2])), distances


@pytest.mark.parametrize("name", EVERY)
def test_styles_differ_only_where_they_should(name: str, photograph: ndarray) -> None:
    ours = corrupt(photograph, name, 3, default_rng(0))
    published = corrupt(photograph, name, 3, default_rng(0), style="imagenet_c")
    assert (digital.jpeg(ours, 85) == published).all() == (name not in IMAGENET_C)


def test_pixelate_of_imagenet_c(photograph: ndarray) -> None:
    height, width = photograph.shape[:2]
    for severity, left in zip(SEVERITIES, (0.6, 0.5, 0.4, 0.3, 0.25), strict=True):
        small = Image.fromarray(photograph).resize((int(width * left), int(height * left)), Image.Resampling.BOX)
        large = np.array(small.resize((width, height), Image.Resampling.BOX))
        published = corrupt(photograph, "pixelate", severity, default_rng(0), style="imagenet_c")
        assert (published == digital.jpeg(large, 85)).all()


def test_snow_of_imagenet_c_takes_the_middle_of_its_flakes(photograph: ndarray) -> None:
    """What is enlarged is a little larger than the image: ImageNet-C keeps the middle, imagecorruptions a corner."""
    image = np.ascontiguousarray(photograph[:97, :90])
    flakes = default_rng(3).normal(size=(97, 90), loc=0.55, scale=0.3)
    large = parts.enlarged(flakes, 4)
    assert large.shape == (100, 92)
    top, left = 1, 1

    class Drawn:
        def normal(self, **how: object) -> ndarray:
            return flakes

        def uniform(self, low: float, high: float) -> float:
            return -90.0

    def layered(layer: ndarray) -> ndarray:
        layer = np.where(layer < 0.9, 0, np.clip(layer, 0, 1))
        layer = np.round(parts.moved(layer, 12, 8, -90.0)[:97, :90] * 255) / 255
        grey = (image / 255.0) @ np.array([0.299, 0.587, 0.114])
        whiter = 0.7 * image / 255.0 + 0.3 * np.maximum(image / 255.0, grey[..., None] * 1.5 + 0.5)
        return np.clip(whiter + (layer + np.rot90(layer, 2))[..., None], 0, 1) * 255

    centred = weather.snow(image, 3, Drawn(), centred=True)  # type: ignore[arg-type]
    assert abs(centred - layered(large[top : top + 97, left : left + 90])).max() <= 1.001
    cornered = weather.snow(image, 3, Drawn())  # type: ignore[arg-type]
    assert abs(cornered - layered(large)).max() <= 1.001


def test_elastic_of_imagenet_c_keeps_what_is_constant() -> None:
    constant = np.full((40, 50, 3), (10, 100, 200), np.uint8)
    for severity in SEVERITIES:
        warped = digital.elastic_transform_imagenet_c(constant, severity, default_rng(0))
        assert abs(warped.astype(int) - constant).max() <= 1


def test_elastic_of_imagenet_c_is_an_affine_map_and_smooth_shifts() -> None:
    smooth = ndimage.gaussian_filter(default_rng(0).random((64, 64)), 3)
    image = (255 * (smooth - smooth.min()) / np.ptp(smooth)).astype(np.uint8)
    random, side = default_rng(7), np.arange(64.0)
    points = np.array([[32 + 21, 32 + 21], [32 + 21, 32 - 21], [32 - 21, 32 - 21]])  # x, y: the middle ± a third
    moved = points + random.uniform(-244 * 0.02, 244 * 0.02, (3, 2))
    back = np.linalg.solve(np.c_[moved, np.ones(3)], points)  # (x, y, 1) @ back: where a pixel came from
    right, down = (ndimage.gaussian_filter(random.uniform(-1, 1, (64, 64)), 2.44, truncate=3) for _ in range(2))
    x, y = np.meshgrid(side, side)
    x, y = x + 244 * 0.05 * right, y + 244 * 0.05 * down
    came = np.stack([x, y, np.ones_like(x)], -1) @ back
    expected = ndimage.map_coordinates(image.astype(float), [came[..., 1], came[..., 0]], order=1, mode="mirror")
    found = digital.elastic_transform_imagenet_c(np.stack([image] * 3, -1), 3, default_rng(7))
    inner = np.s_[8:-8, 8:-8]
    assert distance(found[..., 0][inner], expected[inner]) < 1 < distance(image[inner], expected[inner])


def test_frost_of_imagenet_c_is_a_crop_of_a_texture(tmp_path: Path) -> None:
    for name in ice.FILES:
        Image.fromarray(colours(int(name[5]), 50, 60)).save(tmp_path / name, "PNG")
    image, random = colours(3), default_rng(1)
    number, top, left = random.integers(0, 5), random.integers(0, 50 - 32), random.integers(0, 60 - 40)
    texture = np.array(Image.open(tmp_path / ice.FILES[number]))
    expected = np.clip(0.8 * image + 0.6 * texture[top : top + 32, left : left + 40], 0, 255)
    found = IMAGENET_C["frost"](image, 2, default_rng(1), folder=tmp_path)
    assert (found == expected.astype(np.uint8)).all()


def test_names_and_groups() -> None:
    assert len(CORRUPTIONS) == 15
    assert len(EXTRA) == 4
    assert [name for group in GROUPS.values() for name in group] == EVERY
    assert GROUPS["weather"] == ("snow", "frost", "fog", "brightness")


def test_impulse_noise_loses_as_much_as_it_says() -> None:
    grey = np.full((200, 200, 3), 128, np.uint8)
    for severity, amount in zip(SEVERITIES, (0.03, 0.06, 0.09, 0.17, 0.27), strict=True):
        noisy = corrupt(grey, "impulse_noise", severity, default_rng(0))
        assert [(noisy == value).mean() for value in (0, 255)] == pytest.approx([amount / 2] * 2, abs=0.003)


def test_shot_noise_counts_photons() -> None:
    noisy = corrupt(np.full((200, 200, 3), 51, np.uint8), "shot_noise", 3, default_rng(0)) / 255
    assert noisy.mean() == pytest.approx(0.2, abs=0.005)
    assert noisy.var() == pytest.approx(0.2 / 12, rel=0.03)  # Poisson: the mean over the photons of white


def test_contrast_goes_towards_the_mean_of_each_channel() -> None:
    image = colours() // np.array([1, 2, 4], np.uint8)
    values = image / 255
    means = values.mean((0, 1))
    expected = (np.clip((values - means) * 0.2 + means, 0, 1) * 255).astype(np.uint8)
    assert abs(corrupt(image, "contrast", 3, default_rng(0)).astype(int) - expected).max() <= 1


@pytest.mark.parametrize(
    ("name", "severity", "change"),
    [
        ("brightness", 2, lambda h, s, v: (h, s, min(v + 0.2, 1))),
        ("saturate", 1, lambda h, s, v: (h, s * 0.3, v)),
        ("saturate", 4, lambda h, s, v: (h, min(s * 5 + 0.1, 1), v)),
    ],
)
def test_colours_change_in_hsv(name: str, severity: int, change) -> None:
    image = colours()
    image[:3] = image[:3, :, :1]  # some grey
    image[4] = 0
    changed = [colorsys.hsv_to_rgb(*change(*colorsys.rgb_to_hsv(*pixel))) for pixel in image.reshape(-1, 3) / 255]
    expected = np.array(changed).reshape(image.shape) * 255
    assert abs(corrupt(image, name, severity, default_rng(0)) - np.floor(expected + 1e-9)).max() <= 1


def test_pixelate_by_a_half_is_the_mean_of_blocks() -> None:
    image = colours()
    blocks = image.reshape(16, 2, 20, 2, 3).mean((1, 3)).repeat(2, 0).repeat(2, 1)
    assert (
        abs(corrupt(image, "pixelate", 2, default_rng(0)) - blocks).max() <= 1
    )  # rounded along rows, and along columns


def test_jpeg_again_changes_little(photograph: ndarray) -> None:
    once = corrupt(photograph, "jpeg_compression", 3, default_rng(0))
    again = corrupt(once, "jpeg_compression", 3, default_rng(0))
    assert distance(again, once) < 0.3 * distance(once, photograph)


def test_out_of_focus_points_are_discs() -> None:
    for severity, (radius, sigma) in zip(SEVERITIES, blur.DEFOCUS, strict=True):
        disc = blur.disc(radius, sigma)
        assert disc.sum() == pytest.approx(1, abs=1e-6 if radius < 8 else 0.02)
        assert disc == pytest.approx(disc.T)
        assert (disc > disc.max() / 2).sum() == pytest.approx(np.pi * radius**2, rel=0.05)
        image, reach = colours(0, 41, 51), len(disc) // 2
        window = image[20 - reach : 21 + reach, 25 - reach : 26 + reach]
        shown = corrupt(image, "defocus_blur", severity, default_rng(0))[20, 25]
        assert shown == pytest.approx((disc[..., None] * window).sum((0, 1)), abs=1)


@pytest.mark.parametrize("furthest", [1, 2, 4])
def test_glass_copies_pixels_one_after_another(furthest: int) -> None:
    height, width = 33, 40
    pixels = np.arange(height * width).reshape(height, width)
    shifts = iter(default_rng(3).integers(-furthest, furthest, (height * width, 2)))
    for row in range(height - furthest, furthest, -1):
        for column in range(width - furthest, furthest, -1):
            right, down = next(shifts)
            pixels[row, column] = pixels[row + down, column + right]
    assert (blur.sources(height, width, furthest, default_rng(3)) == pixels).all()


@pytest.mark.parametrize(("radius", "sigma", "angle"), [(3, 2, 30), (4, 3, -45), (5, 2, -110), (20, 15, 10)])
def test_motion_is_a_weighted_mean_of_shifts(radius: int, sigma: float, angle: float) -> None:
    image = colours()[..., 0]
    rows, columns = np.indices(image.shape)
    weights = [np.exp(-(step**2) / (2 * sigma**2)) for step in range(2 * radius + 1)]
    expected = np.zeros(image.shape)
    for step, weight in enumerate(weights):
        down = int(np.ceil(step * np.sin(np.radians(angle)) - 0.5))
        right = int(np.ceil(step * np.cos(np.radians(angle)) - 0.5))
        if abs(down) < 32 and abs(right) < 40:
            expected += weight / sum(weights) * image[np.clip(rows + down, 0, 31), np.clip(columns + right, 0, 39)]
    assert parts.moved(image, radius, sigma, angle) == pytest.approx(expected)


@pytest.mark.parametrize("factor", [1.0, 1.03, 1.11, 2.5, 4.5])
def test_enlarged_is_a_linear_zoom_of_the_middle(factor: float) -> None:
    image = colours(0, 45, 64) / 255
    tall, wide = (int(np.ceil(side / factor)) for side in (45, 64))
    top, left = (45 - tall) // 2, (64 - wide) // 2
    expected = ndimage.zoom(image[top : top + tall, left : left + wide], (factor, factor, 1), order=1, mode="nearest")
    assert parts.enlarged(image, factor) == pytest.approx(expected)
    assert parts.middle(np.arange(30).reshape(5, 6), 3, 4).tolist()[0] == [7, 8, 9, 10]


def test_textures_made_by_code_are_like_ice() -> None:
    textures = [ice.made(number) for number in range(5)]
    for made in textures:
        assert 90 < made.mean() < 220
        assert 20 < made.std() < 60
        assert made[..., 2].mean() > made[..., 0].mean()  # bluish
    assert distance(textures[1], textures[2]) > 10
    assert corrupt(colours(0, 600, 700), "frost", 1, default_rng(0)).shape == (600, 700, 3)  # larger than a texture


@pytest.mark.parametrize(
    ("image", "name", "severity", "style", "says"),
    [
        (colours(), "gaussian_nose", 1, "imagecorruptions", "gaussian_noise"),
        (colours(), "fog", 0, "imagecorruptions", "1, 2, 3, 4 or 5"),
        (colours(), "fog", 2.5, "imagecorruptions", "1, 2, 3, 4 or 5"),
        (colours(), "fog", 1, "imagenet", "imagenet_c"),
        (colours(0, 31, 40), "fog", 1, "imagecorruptions", "at least 32 pixels, not 40×31"),
        (colours() / 255, "fog", 1, "imagecorruptions", "uint8.*float64"),
        (colours()[..., 0], "fog", 1, "imagecorruptions", r"\(height, width, 3\)"),
        ([1, 2], "fog", 1, "imagecorruptions", "uint8.*list"),
    ],
)
def test_says_what_would_be_right(image, name: str, severity: float, style: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        corrupt(image, name, severity, default_rng(0), style=style)


def test_says_which_textures_and_packages_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"frost1\.png, frost2\.png"):
        corrupt(colours(), "frost", 1, default_rng(0), frost=tmp_path)
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(ValueError, match="need opencv-python-headless and scipy: pip install opencv"):
        corrupt(colours(), "contrast", 1, default_rng(0))


def test_importing_brings_neither_opencv_nor_scipy() -> None:
    for path in Path(corruptions.__file__).parent.glob("*.py"):
        imports = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
        names = {(node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name for node in imports}
        assert not {name.split(".")[0] for name in names} & {"cv2", "scipy", "skimage"}
