"""Segments and objects over their images: the right colours at the right places, pixel by pixel."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from labelflow.analysis.drawn import HEIGHT, LINE, WIDTH, beside, colour, draw_objects, draw_segments

NAMES = [f"class {number}" for number in range(20)]


def noise(width: int, height: int) -> Image.Image:
    pixels = torch.randint(256, (height, width, 3), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    return Image.fromarray(pixels.numpy())


def pixels(image: Image.Image) -> Tensor:
    """(H, W, 3)"""
    return torch.from_numpy(np.array(image)).float()


def blended(image: Tensor, number: int, alpha: float) -> Tensor:
    """An image under the colour of a class."""
    return (1 - alpha) * image + alpha * torch.tensor(colour(number)).float()


def test_classes_are_painted_where_they_are_and_void_stays_as_it_is() -> None:
    image = noise(400, 90)  # wide enough to stay as it is
    classes = torch.full((90, 400), 255)
    classes[:30, :100], classes[30:60], classes[60:, 399] = 0, 5, 13
    drawn = pixels(draw_segments(image, classes, NAMES, legend=False))
    before = pixels(image)
    assert drawn.shape == before.shape
    for number in (0, 5, 13):
        own = classes == number
        assert (drawn[own] - blended(before[own], number, 0.6)).abs().max() <= 1  # whole numbers
    assert torch.equal(drawn[classes == 255], before[classes == 255])


def test_a_small_image_is_enlarged_and_its_classes_with_it() -> None:
    classes = torch.zeros(24, 48, dtype=torch.long)
    classes[:, 24:] = 1
    drawn = draw_segments(Image.new("RGB", (48, 24)), classes, NAMES, legend=False)
    assert drawn.size == (WIDTH, WIDTH // 2)
    found = pixels(drawn)
    black = torch.zeros(3)
    assert (found[:, : WIDTH // 2] - blended(black, 0, 0.6)).abs().max() <= 1
    assert (found[:, WIDTH // 2 :] - blended(black, 1, 0.6)).abs().max() <= 1


@pytest.mark.parametrize(
    ("size", "drawn"), [((2, 1500), (5, HEIGHT)), ((3, 900), (14, HEIGHT)), ((2, 5000), (2, 5000))]
)
def test_a_narrow_image_stays_low_enough_for_a_jpeg(size: tuple[int, int], drawn: tuple[int, int]) -> None:
    width, height = size
    classes = torch.zeros(height, width, dtype=torch.long)
    classes[height // 2 :] = 1
    picture = draw_segments(Image.new("RGB", size), classes, NAMES, legend=False)
    assert picture.size == drawn
    found, half = pixels(picture), drawn[1] // 2
    assert (found[: half - 2] - blended(torch.zeros(3), 0, 0.6)).abs().max() <= 1
    assert (found[half + 2 :] - blended(torch.zeros(3), 1, 0.6)).abs().max() <= 1


def test_boxes_are_where_they_should_be_in_a_narrow_image() -> None:
    """Across it is enlarged by 5 / 2, down by 4096 / 1500."""
    seen = objects([0.0, 300, 2, 1200], labels=[4], size=(1500, 2))
    found = pixels(draw_objects(Image.new("RGB", (2, 1500)), seen, NAMES))
    rows = (found == torch.tensor(colour(4))).all(-1).any(1).nonzero()
    assert (int(rows.min()), int(rows.max())) == pytest.approx((300 * HEIGHT / 1500, 1200 * HEIGHT / 1500), abs=3)


def test_an_image_without_classes_and_one_in_grey() -> None:
    nothing = torch.full((90, 400), 255)
    image = noise(400, 90)
    assert torch.equal(pixels(draw_segments(image, nothing, NAMES, legend=False)), pixels(image))
    drawn = draw_segments(image.convert("L"), nothing, NAMES)
    assert torch.equal(pixels(drawn)[:90], pixels(image.convert("L").convert("RGB")))


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[float, float]]]:
    """What is written on pictures, and where."""
    texts: list[tuple[str, tuple[float, float]]] = []
    real = ImageDraw.ImageDraw.text

    def text(self: ImageDraw.ImageDraw, place: tuple[float, float], told: str, *how: object, **more: object) -> None:
        texts.append((told, place))
        real(self, place, told, *how, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(ImageDraw.ImageDraw, "text", text)
    return texts


def test_the_legend_names_what_is_there_beside_its_colour(written: list[tuple[str, tuple[float, float]]]) -> None:
    image, classes = noise(400, 60), torch.full((60, 400), 255)
    classes[0, :3] = torch.tensor([3, 11, 3])
    drawn = draw_segments(image, classes, NAMES)
    assert [told for told, _ in written] == ["class 3", "class 11"]
    assert drawn.size == (400, 60 + LINE + 4)
    assert torch.equal(pixels(drawn)[1:60], pixels(image)[1:])  # it covers nothing
    for number, (_, (x, y)) in zip((3, 11), written, strict=True):
        assert drawn.getpixel((int(x) - 12, int(y) + 8)) == colour(number)


def test_a_long_legend_takes_several_lines_within_the_picture(written: list[tuple[str, tuple[float, float]]]) -> None:
    classes = torch.arange(20).repeat(20).view(1, 400)
    drawn = draw_segments(noise(400, 1), classes, NAMES)
    assert [told for told, _ in written] == NAMES
    heights = sorted({y for _, (_, y) in written})
    assert len(heights) > 1
    assert [two - one for one, two in pairwise(heights)] == [LINE] * (len(heights) - 1)
    assert heights[-1] + LINE <= drawn.height
    edge = pixels(drawn)[1:, 397:]
    assert (edge == 255).all()  # no text is cut off


def objects(*boxes: list[float], labels: list[int], size: tuple[int, int]) -> dict[str, Tensor]:
    """Each mask is the left half of its box."""
    masks = torch.zeros(len(boxes), *size, dtype=torch.bool)
    for mask, (left, top, right, bottom) in zip(masks, boxes, strict=True):
        mask[int(top) : int(bottom), int(left) : int(left + right) // 2] = True
    return {"boxes": torch.tensor(boxes), "labels": torch.tensor(labels), "masks": masks}


@pytest.mark.parametrize("enlarged", [1, 4])
def test_boxes_and_masks_are_drawn_at_scaled_places(enlarged: int) -> None:
    """The image is black, so what is not black was drawn."""
    width, height = WIDTH // enlarged, 192 // enlarged
    box = [20.0, 16, 90, 44]
    seen = objects(box, labels=[4], size=(height, width))
    drawn = pixels(draw_objects(Image.new("RGB", (width, height)), seen, NAMES))
    assert drawn.shape == (192, WIDTH, 3)
    left, top, right, bottom = (int(enlarged * side) for side in box)
    own, middle, centre = torch.tensor(colour(4)).float(), (top + bottom) // 2, (left + right) // 2
    for x, y in ((left, bottom - 3), (right, middle), (centre, bottom)):  # the name stands at the top
        assert torch.equal(drawn[y, x], own), (x, y)
    assert (drawn[bottom - 4, centre - 4] - 0.4 * own).abs().max() <= 1  # the mask, left
    assert (drawn[bottom - 4, centre + 4] == 0).all()  # inside of the box, but not of the mask
    outside = drawn.clone()
    outside[top - 1 : bottom + 3, left - 1 : right + 3] = 0
    assert (outside == 0).all()


def test_names_and_scores_are_written_at_the_boxes(written: list[tuple[str, tuple[float, float]]]) -> None:
    seen = objects([10.0, 20, 90, 80], [200.0, 0, 300, 90], labels=[1, 7], size=(100, 400))
    draw_objects(noise(400, 100), seen, NAMES)
    assert written == [("class 1", (12, 20)), ("class 7", (202, 0))]
    written.clear()
    draw_objects(noise(400, 100), {**seen, "scores": torch.tensor([0.914, 0.5])}, NAMES)
    assert [told for told, _ in written] == ["class 1 91 %", "class 7 50 %"]


def test_without_objects_an_image_is_as_it_is() -> None:
    nothing = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0).long(), "masks": torch.zeros(0, 90, 400)}
    image = noise(400, 90)
    assert torch.equal(pixels(draw_objects(image, nothing, NAMES)), pixels(image))


def test_pictures_stand_in_a_row() -> None:
    one, two = Image.new("RGB", (5, 4), "red"), Image.new("RGB", (3, 6), "blue")
    row = pixels(beside(one, two, gap=2))
    expected = torch.full((6, 10, 3), 255.0)
    expected[:4, :5], expected[:, 7:] = torch.tensor([255.0, 0, 0]), torch.tensor([0, 0, 255.0])
    assert torch.equal(row, expected)


def test_colours_of_classes_differ() -> None:
    found = torch.tensor([colour(number) for number in range(16)]).float()
    distances = torch.cdist(found, found) + 1e3 * torch.eye(16)
    assert distances.min() > 20
    assert len({colour(number) for number in range(150)}) == 150
