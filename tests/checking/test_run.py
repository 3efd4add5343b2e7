"""A check of a folder with one of each fault, and what is written about it."""

import csv
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import labelflow as lf
from labelflow.checking.problems import KINDS
from labelflow.checking.run import DataCheck

FAULTS = {
    ("train/cat/gone.jpg", "inaccessible"),
    ("train/cat/empty.jpg", "not an image"),
    ("train/cat/text.jpg", "not an image"),
    ("train/cat/truncated.jpg", "damaged"),
    ("train/cat/new\nline.jpg", "damaged"),
    ("train/cat/escape\x1b[2J.jpg", "damaged"),
    ("train/cat/caf\udce9.jpg", "damaged"),
    ("train/cat/bomb.png", "too large"),
    ("train/dog/mislabelled.jpg", "in several classes"),
    ("val/dog/both.jpg", "in several classes"),
    ("val/dog/both.jpg", "in train and val"),
    ("val/cat/leaked.jpg", "in train and val"),
    ("train/cat/again.jpg", "duplicate"),
    ("train/empty", "empty class"),
    ("val/empty", "class not in val"),
    ("train/fox", "class not in train"),
    ("train/caf\udce9", "name not UTF-8"),
    ("val/caf\udce9", "class not in val"),
    ("val/owl", "class not in val"),
    ("train/cat/pixel\x1b.png", "tiny"),
    ("train/cat/thin.png", "tiny"),
    ("train/cat/huge.png", "huge"),
    ("train/cat/png.jpg", "wrong extension"),
}


@pytest.fixture(scope="module")
def found(planted: Path, tmp_path_factory: pytest.TempPathFactory) -> DataCheck:
    return lf.check_data(planted, out=tmp_path_factory.mktemp("out"), workers=2, quiet=True)


def below(planted: Path, file: str) -> str:
    return os.path.relpath(file, planted)


def test_every_fault_is_found_and_nothing_else(found: DataCheck, planted: Path) -> None:
    assert {(below(planted, one.file), one.problem) for one in found.problems} == FAULTS
    assert len(found.problems) == len(FAULTS)
    assert [one.problem for one in found.problems] == sorted(
        (one.problem for one in found.problems), key=list(KINDS).index
    )
    details = {(below(planted, one.file), one.problem): one.detail for one in found.problems}
    assert details["train/cat/again.jpg", "duplicate"] == "same contents as train/cat/1.jpg"
    assert details["train/cat/thin.png", "tiny"] == "200×15 pixels"
    assert details["train/cat/png.jpg", "wrong extension"] == "a PNG file"
    assert details["train/cat/empty.jpg", "not an image"] == "the file is empty"
    assert not found.passed


def test_the_numbers(found: DataCheck, planted: Path) -> None:
    summary = json.loads((found.folder / "check.json").read_text())
    assert summary == found.summary
    files = [path for path in planted.rglob("*.*") if path.is_file()]
    assert (summary["images"], summary["readable"]) == (len(files) + 1, len(files) - 7)  # one leads nowhere
    assert summary["bytes"] == sum(path.stat().st_size for path in files)
    assert summary["splits"] == {"train": len(files) + 1 - 7, "val": 7}
    assert summary["classes"] == {
        "cat": len(files) + 1 - 13,
        "dog": 10,
        "owl": 1,
        "fox": 1,
        "empty": 0,
        "caf\udce9": 1,
    }
    assert summary["shorter_side"] == {"least": 1, "median": 30, "most": 6000}
    assert summary["special"] == {"rotated by EXIF": 1, "animated or of several pages": 1, "transparent": 1}
    assert {name: summary["colours"][name] for name in ("CMYK", "16 or 32 bits", "black and white")} == {
        "CMYK": 1,
        "16 or 32 bits": 1,
        "black and white": 1,
    }
    assert summary["problems"]["tiny"] == {"level": "warning", "count": 2}


def test_the_table_has_every_problem(found: DataCheck) -> None:
    with open(found.folder / "problems.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["problem"] for row in rows] == [one.problem for one in found.problems]
    assert [row["file"] for row in rows] == [one.file.replace("\udce9", "\\udce9") for one in found.problems]
    assert found.to_pandas().to_dict("records") == found.records == rows


def test_the_page_is_small_and_shows_what_can_be_shown(found: DataCheck) -> None:
    page = found.page.read_text(encoding="utf-8")
    assert len(page) < 3e6
    assert not re.search("[\x00-\x08\x0b-\x1f]", page)
    assert "escape\\x1b[2J.jpg" in page
    assert "caf\\udce9.jpg" in page
    for _, kind in FAULTS:
        assert f"<h3>{kind.capitalize()}" in page
    shown = re.findall(r'title="([^"]+)" src="data:image/jpeg', page)
    assert {"pixel\\x1b.png", "huge.png", "png.jpg", "2.jpg", "3.jpg"} <= {Path(name).name for name in shown}
    assert not {"truncated.jpg", "bomb.png"} & {Path(name).name for name in shown}
    assert found._repr_html_().startswith("<iframe")


def test_the_next_check_reads_what_could_not_be_read_and_says_the_same(
    found: DataCheck, planted: Path, tmp_path: Path
) -> None:
    again = lf.check_data(planted, out=tmp_path / "out", quiet=True)
    assert (found.new, again.new) == (found.summary["images"], 8)  # perhaps these can be read now
    for name in ("report.html", "check.json", "problems.csv"):
        assert (again.folder / name).read_bytes() == (found.folder / name).read_bytes()
    assert lf.check_data(planted, out=tmp_path / "out", reread=True, quiet=True).new == found.new
    assert len(lf.check_data(planted, out=tmp_path / "out", min_side=0, quiet=True).problems) == len(FAULTS) - 2


def test_many_classes_are_one_small_page(tmp_path: Path) -> None:
    pixels = np.asarray(Image.effect_noise((112, 112), 80).convert("RGB"))
    for label in range(60):
        for index in range(9):
            path = tmp_path / "photos" / f"class {label:02d}" / f"{index}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.roll(pixels, (label, index), (0, 1))).save(path, quality=95)
    found = lf.check_data(tmp_path / "photos", out=tmp_path / "out", quiet=True)
    page = found.page.read_text()
    assert found.passed
    assert 1e6 < len(page) < 3e6  # of images that hardly can be compressed
    assert "some of 60" in page
    assert page.count("<h3>class ") == 30
    assert "class 59" in page


def test_images_without_classes(photos: Path, tmp_path: Path) -> None:
    found = lf.check_data(photos / "train" / "cat", out=tmp_path / "out", quiet=True)
    assert (found.passed, found.problems, found.summary["classes"]) == (True, [], {})
    assert found.page.read_text().count("data:image/jpeg") == 6


def test_nothing_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").touch()
    found = lf.check_data(tmp_path / "photos", out=tmp_path / "out", quiet=True)
    assert (len(found.problems), found.passed, found.summary["aspect"]) == (1, False, {})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_side": -1}, "min_side must be ≥ 0"),
        ({"max_megapixels": 0}, "max_megapixels > 0"),
        ({"workers": 0}, "workers must be at least 1, or -1"),
        ({"out": "photos/check"}, "photos/check lies within the images .* try --out /.*/checks/photos$"),
        ({"out": "file"}, "file is not a folder"),
    ],
)
def test_bad_input_leaves_nothing(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, object], message: str
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        lf.check_data("photos", quiet=True, **settings)
    assert sorted(os.listdir(tmp_path)) == ["file", "photos"]
    assert sorted(os.listdir(photos)) == ["train", "val"]


@pytest.mark.parametrize("divided", [True, False])
def test_files_that_training_does_not_read(photos: Path, tmp_path: Path, divided: bool) -> None:
    root = photos if divided else photos / "train"
    for name in ("a.HEIC", "b.heic", "c.jfif", ".hidden.heic", "notes.txt"):
        (photos / "train" / "cat" / name).write_bytes(b"anything")
    found = lf.check_data(root, out=tmp_path / "out", quiet=True)
    assert [(one.file, one.detail) for one in found.problems if one.problem == "unknown extension"] == [
        (str(photos / "train"), "not read: 2 × .heic"),
        (str(photos / "train"), "not read: 1 × .jfif"),
    ]
    assert found.passed
