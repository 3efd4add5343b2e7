"""What is found below a folder, and what of it is remembered."""

from pathlib import Path

import pytest

from labelflow.data.scan import MISSING, NEVER, images_below, settled_state, state_of


def test_what_decides_which_images_there_are(tmp_path: Path) -> None:
    """Every folder that was listed, and links that lead nowhere; what is hidden does not matter."""
    for file in ("a/1.png", "a/text.txt", ".hidden/2.png", "b/c/3.JPG", "away/4.gif"):
        (tmp_path / "data" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / file).touch()
    (tmp_path / "data/away").rename(tmp_path / "away")
    for link, target in {
        "link": tmp_path / "away",
        "one.png": tmp_path / "away/4.gif",
        "gone.png": tmp_path / "gone",
        "gone": tmp_path / "gone",
        ".gone": tmp_path / "gone",
        "self": tmp_path / "data/self",
        "self.png": tmp_path / "data/self.png",
    }.items():
        (tmp_path / "data" / link).symlink_to(target)
    found = images_below(str(tmp_path / "data"))
    assert found.files == ["a/1.png", "b/c/3.JPG", "gone.png", "link/4.gif", "one.png", "self.png"]
    nowhere = {path for path, state in found.states if state == MISSING}
    assert nowhere == {"gone.png", "gone", "self", "self.png"}
    assert {path for path, _ in found.states} - nowhere == {"", "a", "b", "b/c", "link"}


def test_a_missing_folder_has_no_images(tmp_path: Path) -> None:
    assert images_below(str(tmp_path / "nowhere")) == ([], [("", MISSING)])


def test_a_folder_without_times_is_never_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labelflow.data.scan.state_of", lambda path: (5, 0, 0))
    assert settled_state(str(tmp_path)) == NEVER
    monkeypatch.setattr("labelflow.data.scan.state_of", lambda path: (5, 10, 10))
    assert settled_state(str(tmp_path)) == (5, 10, 10)


def test_what_is_not_there_has_a_state(tmp_path: Path) -> None:
    assert state_of(str(tmp_path / "nowhere")) == MISSING
    assert state_of(str(tmp_path)) != MISSING
