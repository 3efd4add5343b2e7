"""Samples that cannot be read: each counts once, and files are looked at before a run."""

from pathlib import Path
from threading import Event

import numpy as np
import pytest
from PIL import Image

from labelflow.checking.run import check_data
from labelflow.data import FileCheck, Problem, Unreadable, unreadable
from labelflow.data.images import EXTENSIONS
from labelflow.data.unreadable import check_file

PIXELS = np.random.default_rng(0).integers(0, 256, (60, 50, 3)).astype(np.uint8)


def test_a_sample_counts_once_whatever_is_said_of_it() -> None:
    told: list[str] = []
    count = Unreadable(1, told.append)
    count([Problem("set[3]", "<BytesIO at 0x1>"), Problem("set[3]", "<BytesIO at 0x2>")])
    count([Problem("set[3]", "<BytesIO at 0x3>")])
    assert len(told) == 1
    with pytest.raises(
        ValueError, match=r"cannot read 2 images: set\[4\]: broken \(1 were allowed\).*--skip-unreadable 2$"
    ):
        count([Problem("set[4]", "broken")])


def test_the_number_to_skip_is_told() -> None:
    problems = [Problem(f"{number}.jpg", f"cannot identify image file '{number}.jpg'") for number in range(5)]
    with pytest.raises(
        ValueError, match=r"cannot read 0\.jpg: cannot identify image file \(none was allowed\); fix or"
    ):
        Unreadable(0, print)(problems[:1])
    with pytest.raises(ValueError, match=r"5 images: 0\.jpg: .*; 1\.jpg: .*; 2\.jpg: .* … .*--skip-unreadable 5$"):
        Unreadable(4, print)(problems)
    Unreadable(5, lambda text: None)(problems)
    with pytest.raises(ValueError, match=r"--skip-unreadable 1; see there$"):
        Unreadable(0, print, "; see there")(problems[:1])


@pytest.mark.parametrize("ending", sorted(EXTENSIONS))
def test_whole_files_pass_and_others_do_not(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"image{ending}"
    Image.fromarray(PIXELS if ending != ".pgm" else PIXELS[..., 0]).save(path)
    assert check_file(str(path)) is None
    path.write_text("not an image")
    found = check_file(str(path))
    assert found is not None
    assert str(found) == f"{path}: cannot identify image file"


@pytest.mark.parametrize("ending", [".jpg", ".png", ".gif", ".webp"])
def test_files_that_were_cut_off(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"image{ending}"
    Image.fromarray(PIXELS).save(path)
    whole = path.read_bytes()
    for left in (len(whole) // 2, len(whole) - 30):
        path.write_bytes(whole[:left])
        assert check_file(str(path)) is not None
    path.write_bytes(whole + bytes(10))  # cameras write more behind the end
    assert check_file(str(path)) is None


def test_files_damaged_in_the_middle_have_to_be_read_completely(tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    Image.fromarray(PIXELS).save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:1000] + bytes(100) + whole[1100:])
    assert check_file(str(path)) is None
    assert check_file(str(path), completely=True) is not None


def test_it_goes_on_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = Event()

    def slow(path: str) -> Problem | None:
        go_on.wait()
        return Problem(path, "broken") if path == "2" else None

    monkeypatch.setattr(unreadable, "check_file", slow)
    check = FileCheck([str(number) for number in range(5)])
    check.wait(0.0)
    assert check.found() == []
    go_on.set()
    check.wait(60.0)
    assert check.found() == [Problem("2", "broken")]
    assert check.found() == []


def test_what_a_check_has_read_is_not_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "photos").mkdir()
    paths = [tmp_path / "photos" / f"{number}.jpg" for number in range(5)]
    for number, path in enumerate(paths):
        Image.fromarray(PIXELS[number:]).save(path)
    paths[1].write_bytes(paths[1].read_bytes()[:-500])  # the check finds it
    check_data(tmp_path / "photos", out=tmp_path / "out", quiet=True)
    paths[2].write_text("broken since then")
    paths[3].write_bytes(paths[3].read_bytes())  # another time
    looks: list[tuple[Path, bool]] = []

    def look(path: str, completely: bool = False) -> Problem | None:
        looks.append((Path(path), completely))
        return check_file(path, completely)

    monkeypatch.setattr(unreadable, "check_file", look)
    with_check = [(paths[1], True), (paths[2], False), (paths[3], False)]
    for root, expected in (tmp_path / "photos", with_check), (None, [(path, False) for path in paths]):
        looks.clear()
        check = FileCheck(list(map(str, paths)), root)
        check.wait(60.0)
        assert looks == expected
        found = {problem.name: str(problem) for problem in check.found()}
        assert found.keys() == {str(paths[1]), str(paths[2])}
        assert "truncated" in found[str(paths[1])]
        assert found[str(paths[2])] == f"{paths[2]}: cannot identify image file"


def test_a_file_that_can_be_read_now_is_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "photos" / "1.jpg"
    path.parent.mkdir()
    Image.fromarray(PIXELS).save(path)
    with monkeypatch.context() as patch:
        patch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
        found = check_data(path.parent, out=tmp_path / "out", quiet=True)
        assert [one.problem for one in found.problems] == ["too large"]
    check = FileCheck([str(path)], path.parent)
    check.wait(60.0)
    assert check.found() == []
    assert check_data(path.parent, out=tmp_path / "out", quiet=True).passed
