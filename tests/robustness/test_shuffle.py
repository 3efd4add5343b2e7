"""Shuffled patches: nothing is lost, and the accuracy is that of a naive loop."""

import zlib
from pathlib import Path

import numpy as np
import pytest
from numpy.random import default_rng
from PIL import Image

from labelflow.chance import seed_of
from labelflow.data.folder import Listed
from labelflow.robustness.datasets import ImageSet
from labelflow.robustness.shuffle import GRIDS, Shuffle, ShuffleSuite
from robustness.small import SIZE, ColourReader, details, known, percent, read, values

IMAGE = default_rng(0).integers(1, 256, (224, 224, 3), np.uint8)


@pytest.mark.parametrize(("rows", "columns"), GRIDS)
def test_patches_stay_whole(rows: int, columns: int) -> None:
    shuffled = Shuffle(rows, columns)(IMAGE, 0, default_rng(2))

    def patches(image: np.ndarray) -> list[bytes]:
        high, wide = 224 // rows, 224 // columns
        return [
            image[top : top + high, left : left + wide].tobytes()
            for top in range(0, 224, high)
            for left in range(0, 224, wide)
        ]

    assert sorted(patches(shuffled)) == sorted(patches(IMAGE))
    assert patches(shuffled) != patches(IMAGE)


def test_the_suite_against_a_naive_loop(tmp_path: Path) -> None:
    """A model that reads the top left quarter, whose colour is shuffled away more or less; each label is what it reads
    under one of the grids."""
    half = SIZE // 2
    grids = [(1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (16, 16)]  # 14×14 does not divide 32 pixels
    classes = [f"{label:02}" for label in range(40)]
    seen: list[list[int]] = []  # [image][grid]
    samples = []
    for number in range(28):
        image = np.zeros((SIZE, SIZE, 3), np.uint8)
        image[:half, :half, 0], image[half:, half:, 0] = 20 + number % 4, number % 5 * 8
        Image.fromarray(image).save(tmp_path / f"{number}.png")
        seed = seed_of(0, zlib.crc32(f"{number}.png".encode()))
        shuffled = [image, *(Shuffle(*grid)(image, 0, default_rng(seed)) for grid in grids[1:])]
        seen.append([read(one[:half, :half, 0].mean()) for one in shuffled])
        samples.append((str(tmp_path / f"{number}.png"), seen[number][(number // 2) % 7]))
    dataset = ImageSet("quarters", Listed(tmp_path, *zip(*samples, strict=True), classes), tuple(classes))
    shifts = {"exact": 0, "one more": 1}
    modules = {name: ColourReader(40, shift, part=half) for name, shift in shifts.items()}
    suite = ShuffleSuite(known(modules, classes, tmp_path / "out"), dataset)
    section = suite.measure()

    expected = {
        f"top-1, {rows}×{columns} patches": [
            percent([own[at] + shift == label for own, (_, label) in zip(seen, samples, strict=True)])
            for shift in shifts.values()
        ]
        for at, (rows, columns) in enumerate(grids)
    }
    assert details(section) == {name: pytest.approx(own) for name, own in expected.items()}
    shuffled = list(expected.values())[1:]
    means = [sum(own[at] for own in shuffled) / 6 for at in range(2)]
    assert values(section) == {"mean top-1 over grids": pytest.approx(means)}
    assert len({*means, *expected["top-1, 1×1 patches"]}) == 4  # all differ
    for at, name in enumerate(shifts):
        patches = [1, 4, 8, 16, 32, 64, 256]
        points = [(np.log2(count), own[at]) for count, own in zip(patches, expected.values(), strict=True)]
        assert section.charts[0].lines[name] == [pytest.approx(point) for point in points]
    assert section.notes[1] == "Skipped grids, which do not divide the images evenly: 14×14."
    assert suite.passes == 2 * 28 * 7
    assert list(section.strips[0].images) == [f"{rows}×{columns}" for rows, columns in grids]
