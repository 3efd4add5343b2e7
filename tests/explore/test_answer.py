"""What the page is told equals what the library computes directly."""

from dataclasses import replace

import pytest
import torch
from PIL import Image

import labelflow as lf
from labelflow.analysis.presence import presence
from labelflow.analysis.ratio import layer_ratios, method_ratios
from labelflow.classifier import Classifier, load
from labelflow.data.world import World
from labelflow.explore.answer import Box, answer, boxed

TINY = "vit_tiny_patch16_224(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2, num_classes=5)"
BOX = Box(0.25, 0.1, 0.8, 0.5)


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    return load(TINY, "random")


@pytest.fixture(scope="module")
def pictures() -> list[Image.Image]:
    world = World("val", 2, size=48)
    return [world.load(index)[0] for index in range(2)]


def test_a_box_covers_the_pixels_between_its_rounded_edges() -> None:
    mix = boxed(BOX, 32)
    for row in range(32):
        for column in range(32):
            inside = 3 <= row < 16 and 8 <= column < 26  # 0.1, 0.5, 0.25 and 0.8 of 32 pixels
            assert mix.share[0, 0, row, column] == (0 if inside else 1)
    assert torch.equal(mix.share[0], mix.share[1])
    assert mix.partner.tolist() == [1, 0]


def test_every_number_is_what_the_library_computes(classifier: Classifier, pictures: list[Image.Image]) -> None:
    told = answer(classifier, *pictures, BOX)
    transform = replace(classifier.preprocessing, crop_pct=1.0).transform()
    images = torch.stack([transform(picture) for picture in pictures])
    mix = boxed(BOX, 32)
    mixed = mix.apply(images)[:1]

    assert told["area"] == pytest.approx(1 - 13 * 18 / 32**2, abs=1e-4)
    assert told["start"]["values"] == pytest.approx(mix.tokens((4, 4))[0].flatten().tolist(), abs=1e-4)
    trace = lf.Aligned(classifier.model).trace(mixed, mix.share[:1])
    assert [layer["name"] for layer in told["layers"]] == [layer.name for layer in trace] == ["blocks.0", "blocks.1"]
    ratios, present = layer_ratios(classifier.model, images, mix), presence(classifier.model, mixed)
    for layer, direct, ratio, one in zip(told["layers"], trace, ratios, present, strict=True):
        assert layer["labels"]["grid"] == [4, 4]
        assert layer["labels"]["values"] == pytest.approx(direct.map[0].flatten().tolist(), abs=1e-4)
        assert layer["presence"]["values"] == pytest.approx(one.map[0].flatten().tolist(), abs=1e-4)
        assert layer["similarity"] == pytest.approx(ratio.similarity[0].item(), abs=1e-4)
        assert layer["aligned"] == pytest.approx(ratio.aligned[0].item(), abs=1e-4)
    for name, share in method_ratios(classifier.model, images, mix).items():
        assert told["targets"][name] == pytest.approx(share[0].item(), abs=1e-4)
    assert told["layers"][-1]["aligned"] == told["targets"]["TL-Align"]  # the curve ends at the target
    with torch.no_grad():
        chances = classifier.model(mixed)[0].softmax(0)
    best = sorted(range(5), key=lambda place: -chances[place])[:2]
    assert [one["name"] for one in told["classes"]] == [f"class {place}" for place in best]
    assert [one["chance"] for one in told["classes"]] == pytest.approx(chances[best].tolist(), abs=1e-4)


def test_means_inside_and_outside_of_the_box(classifier: Classifier, pictures: list[Image.Image]) -> None:
    quarter = answer(classifier, *pictures, Box(0, 0, 0.5, 0.5))
    assert (quarter["start"]["inside"], quarter["start"]["outside"]) == (0, 1)
    for layer in quarter["layers"]:
        values = layer["labels"]["values"]
        inside = [values[place] for place in (0, 1, 4, 5)]
        assert layer["labels"]["inside"] == pytest.approx(sum(inside) / 4, abs=1e-3)
        assert layer["labels"]["outside"] == pytest.approx((sum(values) - sum(inside)) / 12, abs=1e-3)


@pytest.mark.parametrize(("box", "share"), [(Box(0.5, 0.5, 0.5, 0.5), 1), (Box(0, 0, 1, 1), 0)])
def test_one_picture_alone_stays_alone(
    classifier: Classifier, pictures: list[Image.Image], box: Box, share: int
) -> None:
    told = answer(classifier, *pictures, box)
    assert told["targets"] == pytest.approx(dict.fromkeys(told["targets"], share), abs=1e-4)
    assert told["start"]["inside" if share else "outside"] is None
    for layer in told["layers"]:
        assert layer["labels"]["values"] == pytest.approx([share] * 16, abs=1e-4)


def test_classes_have_their_names_where_they_are_known(classifier: Classifier, pictures: list[Image.Image]) -> None:
    named = replace(classifier, classes=tuple("abcde"))
    places = [one["name"] for one in answer(classifier, *pictures, BOX)["classes"]]
    letters = ["abcde"[int(place.removeprefix("class "))] for place in places]
    assert [one["name"] for one in answer(named, *pictures, BOX)["classes"]] == letters
