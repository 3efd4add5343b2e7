"""Accuracy under corruptions: against a naive loop, and mCE by hand."""

import zlib
from pathlib import Path

import numpy as np
import pytest
from numpy.random import default_rng
from PIL import Image

from labelflow.chance import seed_of
from labelflow.data.imagenet import imagenet_classes
from labelflow.robustness.corruption_error import ALEXNET
from labelflow.robustness.corruption_suite import Corruption, CorruptionSuite
from labelflow.robustness.corruptions import corrupt
from labelflow.robustness.corruptions.ice import FILES
from labelflow.robustness.settings import CorruptionSettings
from robustness.small import ColourReader, colour_set, details, known, percent, read, save_colour, values


def test_the_suite_against_a_naive_loop(tmp_path: Path) -> None:
    """Each label is what the model reads of an image when it is clean, or at some severity of some corruption."""
    names = ["shot_noise", "fog", "brightness", "saturate"]  # the last is an extra one
    levels = [("clean", 0), *((name, severity) for name in names for severity in range(1, 6))]
    classes = [f"{label:03}" for label in range(256)]  # green, which is 256 times as much, changes nothing
    reds, seen = [50 + 8 * number for number in range(21)], []
    for number, red in enumerate(reds):
        image = np.zeros((32, 32, 3), np.uint8)
        image[..., 0] = red
        seed = seed_of(0, zlib.crc32(f"{number}.png".encode()))
        corrupted = {
            (name, severity): corrupt(image, name, severity, default_rng(seed)) if severity else image
            for name, severity in levels
        }
        seen.append({level: read(one[..., 0].mean()) for level, one in corrupted.items()})
    labels = [own[levels[number]] for number, own in enumerate(seen)]
    dataset = colour_set(tmp_path, classes, list(zip(labels, reds, strict=True)))
    shifts = {"exact": 0, "one more": 1}
    evaluator = known({own: ColourReader(256, shift) for own, shift in shifts.items()}, classes, tmp_path / "out")
    suite = CorruptionSuite(evaluator, dataset, CorruptionSettings(corruptions=("shot_noise, fog", *names[2:])))
    section = suite.measure()

    def top1(level: tuple[str, int], shift: int) -> float:
        return percent([(own[level] + shift) % 256 == label for own, label in zip(seen, labels, strict=True)])

    by_name = {
        name: [sum(top1((name, severity), shift) for severity in range(1, 6)) / 5 for shift in (0, 1)] for name in names
    }
    assert details(section) == {name: pytest.approx(own) for name, own in by_name.items()}
    clean = [top1(("clean", 0), shift) for shift in (0, 1)]
    means = [sum(by_name[name][at] for name in names[:3]) / 3 for at in (0, 1)]
    relative = [100 * mean / own if own else 0.0 for mean, own in zip(means, clean, strict=True)]
    assert values(section) == {
        "mean top-1 over 3 corruptions": pytest.approx(means),
        "mean relative to clean top-1": pytest.approx(relative),
    }
    assert means[0] > 0
    assert clean[0] > 0
    charts = {chart.title: chart.lines["exact"] for chart in (*section.charts, *section.more_charts)}
    assert list(charts) == [
        f"Top-1 accuracy, %: {title}" for title in ("all corruptions", "noise", "weather", "extra", *names)
    ]
    fog = [(0.0, clean[0]), *((float(severity), top1(("fog", severity), 0)) for severity in range(1, 6))]
    assert charts["Top-1 accuracy, %: fog"] == [pytest.approx(point) for point in fog]
    both = [(x, (y + top1(("brightness", int(x)), 0)) / 2) for x, y in fog[1:]]
    assert charts["Top-1 accuracy, %: weather"][1:] == [pytest.approx(point) for point in both]
    assert suite.passes == 2 * 21 * (1 + 4 * 5)
    assert list(section.strips[0].images) == names


def test_mce_by_hand(tmp_path: Path) -> None:
    """ImageNet-C's files, in which corruption c has 1 + s % (c + 2) wrong images of ten at severity s."""
    classes = imagenet_classes()
    wrong = {name: [1 + severity % (at + 2) for severity in range(1, 6)] for at, name in enumerate(ALEXNET)}
    for name, counts in wrong.items():
        for severity, count in enumerate(counts, 1):
            for number in range(10):
                path = tmp_path / "c" / name / str(severity) / classes[number] / "1.png"
                save_colour(path, number + 10 if number < min(count, 10) else number)
    clean = colour_set(tmp_path / "clean", classes, [(0, 0), (1, 1), (2, 2), (3, 7)])
    evaluator = known({"reader": ColourReader(1000)}, classes, tmp_path / "out")
    section = CorruptionSuite(evaluator, clean, CorruptionSettings(imagenet_c=str(tmp_path / "c"))).measure()
    errors = {name: [min(count, 10) / 10 for count in counts] for name, counts in wrong.items()}
    ce = {name: 100 * sum(own) / (5 * ALEXNET[name]) for name, own in errors.items()}
    relative = [100 * (sum(own) - 5 * 0.25) / (5 * ALEXNET[name] - 5 * 0.4345) for name, own in errors.items()]
    mean = 100 - 100 * sum(map(sum, errors.values())) / 75
    assert values(section) == {
        "mean top-1 over 15 corruptions": [pytest.approx(mean)],
        "mean relative to clean top-1": [pytest.approx(mean / 0.75)],
        "mCE": [pytest.approx(sum(ce.values()) / 15)],
        "relative mCE": [pytest.approx(sum(relative) / 15)],
    }
    found = details(section)
    assert {name: found[f"CE of {name}"] for name in ce} == {name: [pytest.approx(own)] for name, own in ce.items()}
    assert {name: found[name] for name in ce} == {
        name: [pytest.approx(100 - 20 * sum(own))] for name, own in errors.items()
    }


def test_other_textures_are_other_frost(tmp_path: Path) -> None:
    for name in FILES:
        Image.new("RGB", (64, 64), "white").save(tmp_path / name)
    before = Corruption("frost", "imagecorruptions", str(tmp_path)).key
    Image.new("RGB", (64, 64), "black").save(tmp_path / FILES[2])
    assert Corruption("frost", "imagecorruptions", str(tmp_path)).key != before
