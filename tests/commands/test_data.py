"""`labelflow data check`: exit codes, and what is printed."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from labelflow.checking import run
from labelflow.cli import main
from labelflow.data import unreadable


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for label, name in enumerate(("cat", "dog")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for index in range(3):
            pixels = np.random.default_rng([label, index]).integers(0, 256, (20, 20, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{index}.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "photos"


def test_sound_images(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", "photos"]) == 0
    out = capsys.readouterr().out
    assert "6 images of 2 classes" in out
    assert "shorter side 20 pixels\nformats: PNG 6; colours: RGB 6\n" in out
    assert "no problems found" in out
    assert "checks/photos/report.html" in out
    assert {path.name for path in Path("checks/photos").iterdir()} == {"report.html", "check.json", "problems.csv"}
    assert main(["data", "check", "photos"]) == 0
    assert "6 of 6 images were done before" in capsys.readouterr().out


def test_warnings_do_not_fail_and_errors_do(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", "photos", "--min-side", "21"]) == 0
    assert "tiny" in capsys.readouterr().out
    (photos / "cat" / "\x1b[2J\n.png").write_bytes(b"")
    with pytest.raises(SystemExit) as stop:
        main(["data", "check", "photos"])
    assert stop.value.code == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.strip().startswith("error")]
    assert line.split() == ["error", "not", "an", "image", "1", "cat/\\x1b[2J\\n.png:", "the", "file", "is", "empty"]
    with pytest.raises(SystemExit):
        main(["data", "check", "photos", "--as-json"])
    assert json.loads(capsys.readouterr().out)["problems"] == {"not an image": {"level": "error", "count": 1}}


def test_sides_and_special_images(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.new("LA", (30, 40)).save(photos / "cat" / "3.png")
    assert main(["data", "check", "photos"]) == 0
    out = capsys.readouterr().out
    assert "shorter sides of 20 to 30 pixels, median 20\nformats: PNG 7; colours: RGB 6, grey 1; special: tran" in out


def test_a_report_never_lies_within_the_images(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(photos)
    assert main(["data", "check", "."]) == 0
    assert (photos.parent / "checks" / "photos" / "report.html").is_file()
    assert main(["data", "check", ".", "--out", "report"]) == 2
    assert f"report lies within the images and would become a part of them; try --out {photos.parent}" in (
        capsys.readouterr().err
    )
    assert sorted(path.name for path in photos.iterdir()) == ["cat", "dog"]


def test_bad_input_is_one_line(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", "nowhere"]) == 2
    assert capsys.readouterr().err.startswith("labelflow: there is no folder nowhere; give one of images")
    assert not Path("checks").exists()


def test_an_interruption(photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "examine_all", interrupt)
    with pytest.raises(SystemExit) as stop:
        main(["data", "check", "photos"])
    assert (stop.value.code, capsys.readouterr().err) == (
        130,
        "labelflow: interrupted. Run the same command again to resume\n",
    )


def test_torch_is_not_needed(photos: Path) -> None:
    program = (
        "import sys; from labelflow.cli import main; main(['data', 'check', 'photos']); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_train_knows_what_was_found(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It looks only at files that could not be read."""
    (photos / "cat" / "3.png").write_bytes(b"")
    with pytest.raises(SystemExit):
        main(["data", "check", "photos"])
    looked_at: list[str] = []
    check_file = unreadable.check_file
    monkeypatch.setattr(unreadable, "check_file", lambda path, **how: looked_at.append(path) or check_file(path, **how))
    model = "vit_tiny_patch16_224(patch_size=8, embed_dim=24, depth=2, num_heads=3)"
    small = ["--model", model, "--image-size", "16", "--batch", "2", "--workers", "0", "--epochs", "1"]
    assert main(["train", "small_vit_tl_align", "--data", "photos", "--out", "run", *small]) == 2
    said = capsys.readouterr().err
    assert "cannot read photos/cat/3.png: cannot identify image file (none was allowed)" in said
    assert looked_at == ["photos/cat/3.png"]
    assert said.endswith("--skip-unreadable 1; labelflow data check photos finds all such files\n")
    assert not Path("run").exists()
