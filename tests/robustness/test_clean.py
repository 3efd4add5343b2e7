"""Accuracy on clean images, by hand for models whose predictions are known."""

from pathlib import Path

import pytest

from labelflow.robustness.clean import CleanSuite
from robustness.small import ColourReader, colour_set, known, open_images, percent, save_colour, values

CLASSES = "abcdefgh"


def test_top1_and_top5(tmp_path: Path) -> None:
    """An image of red r is class r, then r + 1, …: the label is among the first five if it is at most 4 further."""
    images = [(0, 0), (1, 0), (1, 1), (5, 1), (6, 1), (6, 2), (7, 3), (2, 2), (3, 3), (4, 4)]  # label, red
    shifts = {"exact": 0, "one more": 1}
    evaluator = known({name: ColourReader(8, shift) for name, shift in shifts.items()}, CLASSES, tmp_path / "out")
    section = CleanSuite(evaluator, colour_set(tmp_path, CLASSES, images)).measure()
    ranks = [[(label - red - shift) % 8 for label, red in images] for shift in shifts.values()]
    assert values(section) == {
        "top-1": [pytest.approx(percent([rank == 0 for rank in own])) for own in ranks],
        "top-5": [pytest.approx(percent([rank < 5 for rank in own])) for own in ranks],
    }
    assert values(section)["top-1"] == [50.0, 10.0]
    assert values(section)["top-5"] == [90.0, 50.0]
    assert section.notes == ["10 images of 8 classes: colours; accuracies are within ± 31.0 points (95 % confidence)."]


def test_few_classes_have_no_top5(tmp_path: Path) -> None:
    for label, name in enumerate("abc"):
        save_colour(tmp_path / "images" / name / "1.png", label)
    evaluator = known({"all": ColourReader(8)}, CLASSES, tmp_path / "out")
    section = CleanSuite(evaluator, open_images(tmp_path)).measure()
    assert values(section) == {"top-1": [100.0]}
    assert section.notes[1:] == ["The predictions of all are restricted to the classes of the data."]
