"""What is known before a run is started, and what becomes of a start that failed."""

from pathlib import Path

import pytest
from accelerate.state import AcceleratorState

from labelflow.data import Data
from labelflow.engine import Run, Training
from labelflow.tasks import Recipe, runs, train_run

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
