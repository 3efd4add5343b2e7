"""`labelflow predict` with a classifier, as a user runs it; tests/tasks/test_runs_dense.py has the dense runs."""

import csv
import io
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import create_transform

from labelflow.classifier import Classifier, load
from labelflow.cli import main
from labelflow.commands.predict import picture_names

MODEL = "vit_tiny_patch16_224(img_size=32, patch_size=8, embed_dim=24, depth=1, num_heads=2, num_classes=3)=random"
EVIL = "evil\x1b[31m\nname\u202e.png"
LATIN = os.fsdecode(b"caf\xe9.png")  # not UTF-8


def picture(path: Path, seed: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)
    Image.fromarray(coarse).resize((60, 44), Image.Resampling.BICUBIC).save(path)
    return path


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files below tmp_path/photos, where the tests are run from tmp_path."""
    monkeypatch.chdir(tmp_path)
    names = ["photos/1.png", "photos/a/2.PNG", "photos/a/b/3.png", "photos/c.png"]
    for seed, name in enumerate(names):
        picture(Path(name), seed)
    picture(Path("photos/.hidden/4.png"), 4)
    picture(Path("photos/a/._5.png"), 5)
    Path("photos/notes.txt").write_text("no image")
    return names


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    return load(MODEL)


def probabilities(classifier: Classifier, file: str) -> list[float]:
    """Directly: timm's transform, the model, softmax."""
    seen = classifier.preprocessing
    transform = create_transform(
        seen.size, crop_pct=seen.crop_pct, interpolation=seen.interpolation, mean=seen.mean, std=seen.std
    )
    with torch.no_grad(), Image.open(file) as image:
        return classifier.model(transform(image.convert("RGB"))[None])[0].softmax(0).tolist()


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_files_hold_what_the_model_says(
    photos: list[str], classifier: Classifier, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = Path("new/predictions").with_suffix(f".{ending}")
    assert main(["predict", MODEL, "photos", "--top", "2", "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"4 predictions in {out}\n"
    assert main(["predict", MODEL, "photos", "--top", "2", "--format", ending]) == 0
    assert capsys.readouterr().out == out.read_text()
    if ending == "csv":
        assert out.read_text().splitlines()[0] == "file,label,probability,label_2,probability_2"
        found = [
            (row["file"], [(row[f"label{end}"], float(row[f"probability{end}"])) for end in ("", "_2")])
            for row in rows(out.read_text())
        ]
    else:
        lines = [json.loads(line) for line in out.read_text().splitlines()]
        assert [(line["label"], line["probability"]) for line in lines] == [
            (line["top"][0]["label"], line["top"][0]["probability"]) for line in lines
        ]
        found = [(line["file"], [(one["label"], one["probability"]) for one in line["top"]]) for line in lines]
    assert [file for file, _ in found] == photos
    for file, top in found:
        direct = probabilities(classifier, file)
        likeliest = sorted(range(3), key=lambda column: -direct[column])[:2]
        assert [label for label, _ in top] == [f"class {column}" for column in likeliest]
        assert [value for _, value in top] == pytest.approx([direct[column] for column in likeliest], abs=2e-6)


def test_files_folders_and_patterns(photos: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    given = {
        ("photos/c.png", "photos/1.png"): [photos[3], photos[0]],
        ("photos/a",): photos[1:3],
        ("photos/*.png",): [photos[0], photos[3]],
        ("photos/**/*.png",): [photos[0], photos[2], photos[3]],
        ("photos/*",): photos,
        ("photos/**",): photos,
        ("photos/c.png", "photos/a/"): [photos[3], *photos[1:3]],
    }
    for arguments, files in given.items():
        assert main(["predict", MODEL, *arguments, "--format", "csv", "--workers", "0"]) == 0
        assert [row["file"] for row in rows(capsys.readouterr().out)] == files


def test_a_table_for_people(photos: list[str], classifier: Classifier, capsys: pytest.CaptureFixture[str]) -> None:
    long = picture(Path("photos") / ("long" * 40) / f"{'name' * 40}.png", 9)
    assert main(["predict", MODEL, "photos/1.png", str(long)]) == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["file", "class", "probability", "then"]
    direct = probabilities(classifier, "photos/1.png")
    best, *others = sorted(range(3), key=lambda column: -direct[column])
    assert first.split("  ")[0] == "photos/1.png"
    assert f"class {best}  {100 * direct[best]:.1f} %" in first
    assert first.rstrip().endswith(", ".join(f"class {column} {100 * direct[column]:.1f} %" for column in others))
    assert second.startswith(str(long))  # whole, in one line


def test_batches_and_workers_change_nothing(photos: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for how in (["--batch", "1", "--workers", "0"], ["--batch", "3", "--workers", "2"], ["--batch", "64"]):
        assert main(["predict", MODEL, "photos", "--format", "csv", *how]) == 0
        found.append(rows(capsys.readouterr().out))
    for row, *others in zip(*found, strict=True):
        for other in others:
            assert [row[key] for key in row if key[:5] != "proba"] == [other[key] for key in row if key[:5] != "proba"]
            assert float(row["probability"]) == pytest.approx(float(other["probability"]), abs=2e-6)


def test_any_file_name_is_harmless(
    photos: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Escape sequences, line breaks, bytes that are not UTF-8: in tables, files, messages, and on a terminal."""
    names = ["odd/[red]:smile:.png", f"odd/{LATIN}", f"odd/{EVIL}"]
    for seed, name in enumerate(names):
        picture(Path(name), seed)
    assert main(["predict", MODEL, "odd", "--top", "1"]) == 0
    told = capsys.readouterr().out
    assert told.replace("\n", "").isprintable()
    shown = [line.split("  ")[0] for line in told.splitlines()]
    assert shown == ["file", "odd/[red]:smile:.png", r"odd/caf\udce9.png", r"odd/evil\x1b[31m\nname\u202e.png"]
    for out in ("odd.csv", "odd.jsonl"):
        assert main(["predict", MODEL, *names, "--out", out]) == 0
    read = Path("odd.csv").read_bytes().decode("utf-8")
    assert [row["file"] for row in csv.DictReader(io.StringIO(read, newline=""))] == [
        names[0],
        r"odd/caf\udce9.png",
        names[2],
    ]
    lines = [json.loads(line) for line in Path("odd.jsonl").read_bytes().decode("utf-8").splitlines()]
    assert [os.fsencode(line["file"]) for line in lines] == [os.fsencode(name) for name in names]
    capsys.readouterr()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert main(["predict", MODEL, "odd", "--format", "csv"]) == 0
    assert "\x1b" not in capsys.readouterr().out
    Path(names[2]).write_text("no image")
    for how, code in ([], 2), (["--skip-unreadable", "1"], 0):
        assert main(["predict", MODEL, "odd", *how]) == code
        told = capsys.readouterr().err
        assert len(told.splitlines()) == 1
        assert r"evil\x1b[31m\nname" in told
        assert "\x1b" not in told


def test_unreadable_images_stop_it_or_are_left_out(photos: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("photos/a/broken.jpg", "photos/a/cut.png"):
        Path(name).write_bytes(Path("photos/1.png").read_bytes()[:60])
    for allowed in ("0", "1"):
        command = ["predict", MODEL, "photos", "--skip-unreadable", allowed, "--out", "new/found.csv"]
        assert main(command) == 2
        assert "--skip-unreadable 2" in capsys.readouterr().err.splitlines()[-1]
        assert not Path("new").exists()
    assert main(["predict", MODEL, "photos", "--skip-unreadable", "2", "--format", "jsonl", "--batch", "2"]) == 0
    told = capsys.readouterr()
    assert [json.loads(line)["file"] for line in told.out.splitlines()] == photos  # nothing else on stdout
    assert [line.split(":")[0] for line in told.err.splitlines()] == [
        "skipped photos/a/broken.jpg",
        "skipped photos/a/cut.png",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([MODEL], "no images; give files, folders or patterns"),
        ([MODEL, "nothing.jpg"], "there is no file or folder nothing.jpg"),
        ([MODEL, "empty"], "empty has no images; they end in .bmp, .gif, .jpeg, .jpg"),
        ([MODEL, "photos/*.tif"], "no image matches photos/*.tif"),
        ([MODEL, "photos/*.txt"], "no image matches photos/*.txt"),
        ([MODEL, "photos", "--out", "found.txt"], "predictions are saved as .csv or .jsonl, not as found.txt"),
        ([MODEL, "photos", "--out", "empty.csv"], "empty.csv is a folder"),
        ([MODEL, "photos", "--out", "found.csv", "--format", "jsonl"], "found.csv does not end in .jsonl"),
        ([MODEL, "photos", "--format", "xml"], "--format"),
        ([MODEL, "photos", "--top", "0"], "--top must be at least 1, not 0"),
        ([MODEL, "photos", "--batch", "0"], "--batch must be at least 1, not 0"),
        ([MODEL, "photos", "--workers", "-2"], "--workers must be at least -1, not -2"),
        (["photos", "photos"], "photos is not a run"),
        (["runs/nothing", "photos"], "runs/nothing is not a run"),
    ],
)
def test_bad_input_is_one_line(
    photos: list[str], arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("empty", "empty.csv"):
        Path(folder).mkdir()
    before = sorted(Path().rglob("*"))
    assert main(["predict", *arguments]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert message in told
    assert sorted(Path().rglob("*")) == before


def test_where_pictures_go() -> None:
    assert picture_names(["x/1.jpg"]) == {"x/1.jpg": Path("1.png")}
    assert picture_names(["x/a/1.jpg", "x/b/../2.jpg"]) == {
        "x/a/1.jpg": Path("a/1.png"),
        "x/b/../2.jpg": Path("2.png"),
    }
    assert picture_names(["x/1.jpg", "x/1.gif"]) == {"x/1.jpg": Path("1.jpg.png"), "x/1.gif": Path("1.gif.png")}


def test_every_picture_has_a_name_of_its_own() -> None:
    files = ["in/a.jpg", "in/a.png", "in/a.jpg.png", "in/b.jpg"]
    assert len(set(picture_names(files).values())) == 4
