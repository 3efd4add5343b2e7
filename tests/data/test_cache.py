"""Where things are remembered, and runs of users that have no such place."""

from pathlib import Path

import pytest
from PIL import Image

import labelflow as lf
from helpers import pack
from labelflow.data.cache import cache_folder

TINY = {"image_size": 32, "batch": 4, "micro_batch": 4, "epochs": 1, "workers": 0, "quiet": True}


def test_folders_of_the_same_name_are_remembered_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LABELFLOW_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    one, other = cache_folder(tmp_path / "one/photos"), cache_folder(tmp_path / "other/photos")
    assert one is not None
    assert other is not None
    assert one != other
    assert one.parent == other.parent == tmp_path / "xdg/labelflow/data"


@pytest.mark.usefixtures("_no_home")
@pytest.mark.parametrize("source", ["folder", "wds"])
def test_train_without_a_home(tmp_path: Path, source: str) -> None:
    assert cache_folder(tmp_path) is None
    members = []
    for number in range(12):
        path = tmp_path / f"photos/{number % 2}/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), (20 * number, 0, 0)).save(path)
        members += [(f"{number}.png", path.read_bytes()), (f"{number}.cls", b"%d" % (number % 2))]
    pack(tmp_path / "all.tar", members)
    if source == "wds":
        data = {"data": "wds", "root": str(tmp_path), "train_split": "all.tar", "val_split": "all.tar"}
    else:
        data = {"data": str(tmp_path / "photos")}
    run = lf.train("quickstart", out=tmp_path / "run", **data, **TINY)
    assert run.folder == tmp_path / "run"
    assert (tmp_path / "run/model.safetensors").exists()
