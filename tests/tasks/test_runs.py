"""What is known before a run is started, and what becomes of a start that failed."""

from pathlib import Path

import pytest
from accelerate.state import AcceleratorState

from labelflow.data import Data
from labelflow.engine import Run, Training
from labelflow.tasks import Recipe, runs, train_run
from labelflow.tasks.recipe import read_recipe

TINY = Recipe(
    model="vit_tiny_patch16_224(patch_size=8, embed_dim=24, depth=1, num_heads=3)",
    data=Data(source="world(train=16, val=8)", image_size=32, test_crop=1.0, workers=0),
    training=Training(epochs=1, batch=16, micro_batch=8, warmup_epochs=0, log_updates=1),
)


@pytest.fixture(autouse=True)
def _new_accelerator() -> None:
    AcceleratorState._reset_state(reset_partial_state=True)


class TestFailedStarts:
    """One that ended before its first checkpoint does not block the next."""

    @pytest.mark.parametrize("resume", [False, True])
    def test_a_new_start_with_other_settings(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], resume: bool
    ) -> None:
        def fail(*arguments: object) -> None:
            raise MemoryError

        with monkeypatch.context() as patched:
            patched.setattr(runs, "train", fail)
            with pytest.raises(MemoryError):
                train_run(TINY, tmp_path / "run", resume=False)
        assert (tmp_path / "run" / "recipe.json").exists()
        smaller = TINY.change(micro_batch=4, source="world(train=32, val=8)")
        train_run(smaller, tmp_path / "run", resume)
        assert "ended before its first checkpoint; starting anew" in capsys.readouterr().out
        assert Run(tmp_path / "run").read("recipe.json")["training"]["micro_batch"] == 4
        with pytest.raises(ValueError, match="already contains a run"):
            train_run(smaller, tmp_path / "run", resume=False)

    def test_weights_alone_are_not_overwritten(self, tmp_path: Path) -> None:
        run = Run(tmp_path / "run")
        assert not run.has_progress()
        run.folder.mkdir()
        run.write("recipe.json", {})
        (run / "checkpoints" / ".00000001.draft").mkdir(parents=True)  # a kill left it
        assert not run.has_progress()
        (run / "last.safetensors").touch()
        with pytest.raises(ValueError, match="already contains a run"):
            train_run(TINY, run.folder, resume=False)


class TestSettingsThatAreMadeToFit:
    """What is used is told and stored, and the same command goes on with it."""

    def test_micro_batches(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        asked = TINY.change(batch=8, micro_batch=64)
        train_run(asked, tmp_path / "run", resume=False)
        assert "micro-batches of 8, since 64 does not divide a batch of 8" in capsys.readouterr().out
        assert Run(tmp_path / "run").read("recipe.json")["training"]["micro_batch"] == 8
        train_run(asked, tmp_path / "run", resume=True)
        train_run(TINY.change(batch=8, micro_batch=8), tmp_path / "alike", resume=False)
        weights = [Run(tmp_path / name).weights("last").read_bytes() for name in ("run", "alike")]
        assert weights[0] == weights[1]

    def test_a_warm_up(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        asked = TINY.change(batch=4, micro_batch=4, warmup_epochs=3)
        train_run(asked, tmp_path / "run", resume=False)
        assert "warm-up shortened to a quarter of the run (updates: 1)" in capsys.readouterr().out
        stored = Run(tmp_path / "run").read("recipe.json")["training"]
        assert (stored["warmup_epochs"], stored["warmup_updates"]) == (0, 1)
        train_run(asked, tmp_path / "run", resume=True)
        with pytest.raises(ValueError, match="warmup_updates was 1, now 0"):
            train_run(asked.change(warmup_epochs=0), tmp_path / "run", resume=True)

    def test_nothing_is_told_where_all_fits(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        train_run(TINY, tmp_path / "run", resume=False)
        assert "since" not in capsys.readouterr().out
        assert read_recipe(Run(tmp_path / "run")) == TINY


@pytest.mark.parametrize("name", ["model.safetensors", "last.safetensors"])
def test_weights_that_are_not_a_runs_are_not_replaced(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"somebody's")
    with pytest.raises(ValueError, match=r"holds weights but no recipe\.json"):
        train_run(Recipe(), tmp_path, resume=True)
    assert (tmp_path / name).read_bytes() == b"somebody's"
    assert [path.name for path in tmp_path.iterdir()] == [name]
