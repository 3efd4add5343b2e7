"""What a classifier's task knows before anything is written."""

from pathlib import Path
from threading import Event

import pytest
from accelerate.state import AcceleratorState
from PIL import Image

from labelflow.data import Data, unreadable
from labelflow.engine import Training
from labelflow.tasks import Classification, Recipe, classify, train_run

VIT = "vit_tiny_patch16_224(patch_size=8, embed_dim=24, depth=1, num_heads=3)"
TINY = Recipe(
    model=VIT,
    data=Data(source="world(train=16, val=8)", image_size=32, test_crop=1.0, workers=0),
    training=Training(epochs=1, batch=4, micro_batch=4, warmup_epochs=0, log_updates=1),
)


@pytest.fixture(autouse=True)
def _new_accelerator() -> None:
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes, of which one has two files that can't be read."""
    for split, count in (("train", 8), ("val", 2)):
        for name in ("cat", "dog"):
            (tmp_path / "photos" / split / name).mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (40, 40)).save(tmp_path / "photos" / split / name / f"{number}.jpg")
    (tmp_path / "photos" / "train" / "cat" / "3.jpg").write_text("not an image")
    whole = (tmp_path / "photos" / "val" / "cat" / "1.jpg").read_bytes()
    (tmp_path / "photos" / "val" / "cat" / "1.jpg").write_bytes(whole[: len(whole) // 2])
    return tmp_path / "photos"


class TestUnreadableFiles:
    def test_they_are_found_before_anything_is_written(self, photos: Path, tmp_path: Path) -> None:
        recipe = TINY.change(source=str(photos), skip_unreadable=1)
        with pytest.raises(ValueError, match=r"read 2 images: .*train/cat/3\.jpg.*val/cat/1\.jpg.*unreadable 2$"):
            train_run(recipe, tmp_path / "run", resume=False)
        assert not (tmp_path / "run").exists()
        train_run(recipe.change(skip_unreadable=2), tmp_path / "run", resume=False)

    def test_where_there_are_many_they_stop_the_run(
        self, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        go_on, look = Event(), unreadable.check_file
        monkeypatch.setattr(classify, "CHECK_SECONDS", 0.0)
        monkeypatch.setattr(unreadable, "check_file", lambda path: look(path) if go_on.wait() else None)
        (photos / "train" / "cat" / "3.jpg").unlink()  # the other one is met in the evaluation, and not before
        task = Classification(TINY.change(source=str(photos)))
        batches = task.train_batches(updates=2, first_update=0, rank=0, processes=1)
        assert next(batches).problems == []
        go_on.set()
        task.file_check.wait(60.0)
        assert [Path(problem.name).name for problem in next(batches).problems] == ["1.jpg"]
