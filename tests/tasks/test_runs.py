"""What is known before a run is started, and what becomes of a start that failed."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState
from PIL import Image
from safetensors.torch import load_file
from torch import nn

from labelflow.data import Data
from labelflow.data.changes import RECORD
from labelflow.data.world import World
from labelflow.engine import Run, Training
from labelflow.engine.checkpoint import Checkpoints, State
from labelflow.files import forget_file
from labelflow.tasks import Recipe, evaluate_run, runs, train_run
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
        assert read_recipe(Run(tmp_path / "run")) == TINY.change(precision="no")

    def test_precision(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """As the device has it; on resume, as the run was started, wherever that was."""
        with monkeypatch.context() as patched:
            patched.setattr(runs, "resolve_precision", lambda precision: "bf16" if precision == "auto" else precision)
            train_run(TINY, tmp_path / "run", resume=False)
        assert "precision bf16; for float32, choose --precision tf32 or no" in capsys.readouterr().out
        for name, place in (("recipe.json", "training"), ("environment.json", "")):
            stored = Run(tmp_path / "run").read(name)
            assert (stored[place] if place else stored)["precision"] == "bf16"
        train_run(TINY, tmp_path / "run", resume=True)
        assert "now" not in capsys.readouterr().out
        assert read_recipe(Run(tmp_path / "run")).training.precision == "bf16"


class TestResumedOtherwise:
    """What may change changes from there on, and the run says so."""

    LONGER = TINY.change(
        source="world(train=48, val=8)",
        epochs=2,
        save_updates=1,
        optimizer="sgd",
        lr=0.1,
        lr_batch=0,
        mixer="none",
        target="plain",
        drop_path=0.0,
    )

    def stopped(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """After two of six updates."""

        def save_and_stop(checkpoints: Checkpoints, state: State) -> None:
            save(checkpoints, state)
            if state.update == 2:
                raise InterruptedError

        save = Checkpoints.save
        with monkeypatch.context() as patched:
            patched.setattr(Checkpoints, "save", save_and_stop)
            with pytest.raises(InterruptedError):
                train_run(self.LONGER, folder, resume=False, quiet=True)
        return folder

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"micro_batch": 4}, "micro_batch was 8, now 4, so images get different mixing partners; from here on"),
            ({"precision": "bf16"}, "precision was 'no', now 'bf16', so numbers are rounded differently; from here on"),
            ({"compile": "default"}, "compile was '', now 'default', so numbers are rounded differently; from here on"),
            ({"micro_batch": 16, "precision": "tf32"}, "mixing partners; precision was 'no', now 'tf32', so"),
        ],
    )
    def test_it_goes_on_with_the_same_images(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        changes: dict[str, Any],
        said: str,
    ) -> None:
        """Where nothing is mixed, another micro-batch makes no difference but rounding."""
        monkeypatch.setattr(nn.Module, "compile", lambda module, **how: None)
        folder = self.stopped(tmp_path / "run", monkeypatch)
        train_run(self.LONGER.change(**changes), folder, resume=True)
        printed = capsys.readouterr().out
        assert said in printed
        assert "resuming after update 2 of 6" in printed
        train_run(self.LONGER, tmp_path / "alone", resume=False, quiet=True)
        alone, resumed, begun = (
            torch.cat([value.flatten() for value in load_file(one / "last.safetensors").values()])
            for one in (tmp_path / "alone", folder, self.stopped(tmp_path / "begun", monkeypatch))
        )
        assert (resumed - alone).norm() < 0.02 * (alone - begun).norm()
        stored = read_recipe(Run(folder)).training
        assert all(getattr(stored, name) == value for name, value in changes.items())

    def test_the_same_settings_change_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        train_run(self.LONGER, self.stopped(tmp_path / "run", monkeypatch), resume=True)
        assert "now" not in capsys.readouterr().out
        train_run(self.LONGER.change(precision="no"), tmp_path / "alone", resume=False)  # which is auto on a CPU
        ends = [(tmp_path / name / "last.safetensors").read_bytes() for name in ("run", "alone")]
        assert ends[0] == ends[1]


class TestDataThatChanged:
    """Between two starts of a run; `tests/data/test_changes.py` has the cases."""

    @pytest.fixture
    def recipe(self, tmp_path: Path) -> Recipe:
        for split, count in (("train", 8), ("val", 2)):
            for name in ("cat", "dog"):
                (tmp_path / "photos" / split / name).mkdir(parents=True)
                for number in range(count):
                    Image.new("RGB", (40, 40)).save(tmp_path / "photos" / split / name / f"{number}.bmp")
        return TINY.change(source=str(tmp_path / "photos"))

    @pytest.mark.parametrize("hashed", [False, True])
    def test_it_is_refused(self, hashed: bool, recipe: Recipe, tmp_path: Path) -> None:
        train_run(recipe.change(hash_data=hashed), tmp_path / "run", resume=False, quiet=True)
        train_run(recipe, tmp_path / "run", resume=True, quiet=True)  # which need not ask again
        before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}
        replaced = tmp_path / "photos/val/dog/1.bmp"
        image, size = replaced.read_bytes(), replaced.stat().st_size
        Image.new("RGB", (40, 40 if hashed else 39), "teal").save(replaced)
        assert (replaced.stat().st_size == size) == hashed
        how = "with other contents" if hashed else "of another size"
        with pytest.raises(ValueError, match=rf"1 file {how} \(.*photos/val/dog/1\.bmp\)"):
            train_run(recipe.change(workers=1), tmp_path / "run", resume=True)
        assert before == {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}
        replaced.write_bytes(image)
        train_run(recipe, tmp_path / "run", resume=True, quiet=True)

    def test_other_times_are_told(self, recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        train_run(recipe, tmp_path / "run", resume=False)
        assert "modified" not in capsys.readouterr().out
        os.utime(tmp_path / "photos/train/cat/3.bmp", (0, 0))
        train_run(recipe, tmp_path / "run", resume=True)
        assert " ".join(capsys.readouterr().out.split()).count("1 file modified") == 1

    def test_a_refused_resume_records_nothing(self, recipe: Recipe, tmp_path: Path) -> None:
        """Here of a run that an older version started."""
        train_run(recipe, tmp_path / "run", resume=False, quiet=True)
        forget_file(tmp_path / "run" / RECORD)
        extra = tmp_path / "photos/train/cat/new.bmp"
        Image.new("RGB", (40, 40)).save(extra)
        with pytest.raises(ValueError, match="started with 16 training samples; now there are 17"):
            train_run(recipe, tmp_path / "run", resume=True, quiet=True)
        assert not (tmp_path / "run" / RECORD).exists()
        extra.unlink()
        train_run(recipe, tmp_path / "run", resume=True, quiet=True)
        assert (tmp_path / "run" / RECORD).exists()

    def test_a_lost_record_is_not_one_that_never_was(self, recipe: Recipe, tmp_path: Path) -> None:
        train_run(recipe, tmp_path / "run", resume=False, quiet=True)
        (tmp_path / "run" / RECORD).unlink()
        with pytest.raises(ValueError, match=rf"{RECORD} is missing; restore it"):
            train_run(recipe, tmp_path / "run", resume=True, quiet=True)

    def test_evaluations_do_not_care(self, recipe: Recipe, tmp_path: Path) -> None:
        train_run(recipe, tmp_path / "run", resume=False, quiet=True)
        (tmp_path / "photos/val/dog/1.bmp").unlink()
        assert evaluate_run(tmp_path / "run")["loss"] > 0


class TestLabelsThatChanged:
    """Those of a table, which are in no file of an image."""

    def write(self, folder: Path, labels: str) -> str:
        """A table of these labels, the last two of them of images to evaluate on."""
        parts = ["train"] * (len(labels) - 2) + ["val"] * 2
        lines = [f"{n}.bmp,{label},{part}\n" for n, (label, part) in enumerate(zip(labels, parts, strict=True))]
        for number in range(len(labels)):
            if not (folder / f"{number}.bmp").exists():
                Image.new("RGB", (40, 40)).save(folder / f"{number}.bmp")
        (folder / "t.csv").write_text("".join(["image,label,split\n", *lines]))
        return str(folder / "t.csv")

    @pytest.mark.parametrize(("labels", "what"), [("ba" * 8 + "ab", "training"), ("ab" * 8 + "ba", "evaluation")])
    def test_it_is_refused(self, tmp_path: Path, labels: str, what: str) -> None:
        recipe = TINY.change(source=self.write(tmp_path, "ab" * 9))
        train_run(recipe, tmp_path / "run", resume=False, quiet=True)
        before = (tmp_path / "run" / "config.json").read_bytes()
        self.write(tmp_path, labels)
        with pytest.raises(ValueError, match=f"started with other labels of its {what} images: they have changed"):
            train_run(recipe, tmp_path / "run", resume=True, quiet=True)
        assert (tmp_path / "run" / "config.json").read_bytes() == before
        self.write(tmp_path, "ab" * 9)
        train_run(recipe, tmp_path / "run", resume=True, quiet=True)

    def test_of_older_runs_they_are_recorded_from_then_on(self, tmp_path: Path) -> None:
        recipe = TINY.change(source=self.write(tmp_path, "ab" * 9))
        train_run(recipe, tmp_path / "run", resume=False, quiet=True)
        run = Run(tmp_path / "run")
        config = run.config()
        run.write("config.json", {name: value for name, value in config.items() if name != "image_labels"})
        train_run(recipe, tmp_path / "run", resume=True, quiet=True)
        assert run.config() == config


def test_classes_with_the_same_name_are_evaluated_on_other_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classes = ["crane", *World("train", 1, 32).classes[2:], "crane"]
    monkeypatch.setattr(World, "classes", classes)
    train_run(TINY, tmp_path / "run", resume=False, quiet=True)
    assert Run(tmp_path / "run").config()["label_names"] == classes
    assert evaluate_run(tmp_path / "run", source="world(val=8, seed=1)")["loss"] > 0


@pytest.mark.parametrize("name", ["model.safetensors", "last.safetensors"])
def test_weights_that_are_not_a_runs_are_not_replaced(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"somebody's")
    with pytest.raises(ValueError, match=r"holds weights but no recipe\.json"):
        train_run(Recipe(), tmp_path, resume=True)
    assert (tmp_path / name).read_bytes() == b"somebody's"
    assert [path.name for path in tmp_path.iterdir()] == [name]
