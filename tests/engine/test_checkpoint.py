"""A run that was killed and resumed ends as one that was left alone, bit for bit."""

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from accelerate import Accelerator
from torch import nn
from torch.testing import assert_close

from labelflow.classifier import load
from labelflow.data import Data
from labelflow.engine import Interrupted, Run, Training, loop
from labelflow.engine.checkpoint import Checkpoints, State
from labelflow.engine.optim import make_optimizer
from labelflow.tasks import Recipe, train_run

KILLS = {"classify": 4, "segment": 1, "detect": 1}  # half of them in the middle of a save


def test_killed_runs_end_alike(tmp_path: Path) -> None:
    asked = [str(part) for pair in KILLS.items() for part in pair]
    command = [sys.executable, str(Path(__file__).parent / "survive.py"), str(tmp_path), *asked]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    for task, kills in KILLS.items():
        assert f"{task} {kills} of {kills} ends identical" in done.stdout, done.stdout
    least = sum(KILLS.values()) * 2 // 3
    assert len(re.findall(": killed", done.stdout)) >= least, done.stdout  # the kills did come in time


def test_of_two_starts_at_once_one_is_refused(tmp_path: Path) -> None:
    kinds = ["train", "resume", "compare"]
    asked = [word for kind in kinds for word in (kind, "1")]
    command = [sys.executable, str(Path(__file__).parent / "starts.py"), str(tmp_path), *asked]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.stdout.splitlines() == [f"{kind} 1 of 1 clean refusals" for kind in kinds], done.stdout + done.stderr


SMALL = Recipe(
    model="vit_tiny_patch16_224(patch_size=8, embed_dim=24, depth=2, num_heads=3)",
    data=Data(source="world(train=32, val=16)", image_size=32, workers=0),
    training=Training(epochs=4, batch=16, micro_batch=16, warmup_epochs=1, ema=0.9, log_updates=1),
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two updates an epoch, four epochs: checkpoints 6 and 8 are kept."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    train_run(SMALL, folder, resume=False)
    assert [path.name for path in Run(folder).checkpoints()] == ["00000006", "00000008"]
    return folder


def end(folder: Path) -> dict[str, object]:
    """What a run ends with: weights, checkpoints, metrics without speeds."""
    weights = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.safetensors")}
    lines = [{**line, "images_per_second": 0} for line in Run(folder).metrics()]
    return {**weights, "checkpoints": [path.name for path in Run(folder).checkpoints()], "metrics": lines}


def flip(path: Path) -> None:
    """One bit, in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


FILES = ("model.safetensors", "ema.safetensors", "optimizer.pt", "state.json", "checksums.json")
DAMAGES = {"flipped": flip, "missing": os.remove, "cut": lambda path: os.truncate(path, path.stat().st_size // 2)}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_made_again_from_the_one_before(
    trained: Path, tmp_path: Path, name: str, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    DAMAGES[damage](folder / "checkpoints" / "00000008" / name)
    train_run(SMALL, folder, resume=True)
    said = capsys.readouterr().out
    assert f"{folder / 'checkpoints' / '00000008'}/" in said
    assert f"; going back to {folder / 'checkpoints' / '00000006'}" in said
    assert "resuming after update 6 of 8" in said
    assert end(folder) == end(trained)


def test_damage_that_the_published_weights_share(trained: Path, tmp_path: Path) -> None:
    """They are links to the checkpoint's files: a disk that damages one damages the other."""
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    for name in ("last.safetensors", "model.safetensors"):
        for path in folder.rglob("ema.safetensors"):
            if path.read_bytes() == (folder / name).read_bytes():
                (folder / name).unlink()
                os.link(path, folder / name)
    flip(folder / "checkpoints" / "00000008" / "ema.safetensors")
    train_run(SMALL, folder, resume=True)
    assert end(folder) == end(trained)


def test_a_run_that_went_back_can_be_interrupted_again(trained: Path, tmp_path: Path) -> None:
    """Though its best weights were damaged along with the checkpoint."""
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    flip(folder / "checkpoints" / "00000008" / "ema.safetensors")
    flip(folder / "model.safetensors")
    shutil.copytree(folder, tmp_path / "stopped")
    stopping = SMALL.change(save_updates=1, keep=9)
    with patch.object(loop, "_stop_signals", lambda: nullcontext(lambda accelerator: True)):
        for _ in range(2):
            with suppress(Interrupted):
                train_run(stopping, tmp_path / "stopped", resume=True)
    train_run(SMALL, tmp_path / "stopped", resume=True)
    load(tmp_path / "stopped")
    assert (tmp_path / "stopped" / "last.safetensors").read_bytes() == (trained / "last.safetensors").read_bytes()


def test_damaged_best_weights_are_not_listed_anew(trained: Path, tmp_path: Path) -> None:
    """The best checkpoint is no longer there, or is damaged, too."""
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    newest = json.loads((folder / "checkpoints" / "00000008" / "state.json").read_text())
    best = folder / "checkpoints" / f"{newest['best_update']:08d}"
    assert best.name != "00000008"
    for path in (folder / "model.safetensors", *best.glob("ema.safetensors")):
        flip(path)
    with pytest.raises(ValueError, match=rf"{folder / 'model.safetensors'} is damaged: checksum mismatch"):
        train_run(SMALL, folder, resume=True)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the system does not tell what is mapped")
def test_no_file_is_mapped_when_it_is_replaced(trained: Path, tmp_path: Path) -> None:
    """Windows refuses that."""
    shutil.copytree(trained, tmp_path / "run")
    mapped: list[str] = []

    def publish(self: Checkpoints, *args: object) -> None:
        mapped.append(Path("/proc/self/maps").read_text())
        before(self, *args)

    before = Checkpoints._publish
    with patch.object(Checkpoints, "_publish", publish):
        train_run(SMALL, tmp_path / "run", resume=True)
    assert mapped
    assert not any(str(tmp_path) in text for text in mapped)


def test_a_checkpoint_of_another_run_is_not_resumed_from(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_run(SMALL.change(target="plain"), tmp_path / "other", resume=False)
    folder, number = tmp_path / "run", "00000008"
    shutil.copytree(trained, folder)
    shutil.rmtree(folder / "checkpoints" / number)
    shutil.copytree(tmp_path / "other" / "checkpoints" / number, folder / "checkpoints" / number)
    train_run(SMALL, folder, resume=True)
    assert f"{number}/state.json is from another run; going back to" in capsys.readouterr().out
    assert end(folder) == end(trained)


def test_without_an_intact_checkpoint_nothing_is_changed(trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    for checkpoint in Run(folder).checkpoints():
        flip(checkpoint / "optimizer.pt")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    refusal = rf"no intact checkpoint: .*00000008/optimizer\.pt .*00000006/optimizer\.pt .* --init {folder}"
    with pytest.raises(ValueError, match=refusal):
        train_run(SMALL, folder, resume=True)
    changed = {path.name for path, content in before.items() if not path.exists() or path.read_bytes() != content}
    assert changed <= {"environment.json", "checksums.json"}
    assert load(folder).weights == load(trained).weights  # which can be started from


@pytest.mark.parametrize(("which", "name"), [("best", "model.safetensors"), ("last", "last.safetensors")])
def test_damaged_weights_are_refused(trained: Path, tmp_path: Path, which: str, name: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    for damage in (flip, os.remove):
        damage(folder / name)
        with pytest.raises(ValueError, match=rf"{folder / name} is (damaged: checksum mismatch|missing; restore it)"):
            load(folder, which)


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_last_weights_are_written_again_on_resume(trained: Path, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)  # without hard links: the checkpoint's own weights stay intact
    DAMAGES[damage](folder / "last.safetensors")
    train_run(SMALL, folder, resume=True)
    assert end(folder) == end(trained)
    load(folder, "last")


def test_a_checkpoint_that_a_kill_left_is_removed(trained: Path, tmp_path: Path) -> None:
    """The kill came between the last save and the removal of the oldest checkpoint."""
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    shutil.copytree(folder / "checkpoints" / "00000006", folder / "checkpoints" / "00000004")
    train_run(SMALL, folder, resume=True)
    assert end(folder) == end(trained)


@pytest.mark.parametrize("name", ["recipe.json", "config.json"])
def test_a_run_that_has_lost_a_file_is_no_other_run(trained: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    (folder / name).unlink()
    for resume in (False, True):
        with pytest.raises(ValueError, match=rf"{folder} .* no {re.escape(name)}|already contains a run"):
            train_run(SMALL.change(lr=0.1), folder, resume=resume)
    assert end(folder) == end(trained)


def test_a_run_without_its_weights_is_still_a_run(trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained, folder, ignore=shutil.ignore_patterns("checkpoints", "*.safetensors"))
    before = (folder / "metrics.jsonl").read_bytes()
    with pytest.raises(ValueError, match="already contains a run; continue it with --resume"):
        train_run(SMALL.change(lr=0.1), folder, resume=False)
    assert (folder / "metrics.jsonl").read_bytes() == before


def test_lost_checkpoints_are_said(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    shutil.rmtree(folder / "checkpoints")
    train_run(SMALL, folder, resume=True)
    assert f"{folder} has lost its checkpoints; starting anew" in capsys.readouterr().out
    assert end(folder) == end(trained)


@pytest.mark.parametrize(("saved_on", "loaded_on"), [("cuda", "cpu"), ("cpu", "cuda")])
def test_whether_an_optimizer_is_fused_is_up_to_the_device(saved_on: str, loaded_on: str, tmp_path: Path) -> None:
    """A fused one runs on a CPU, too, where it rounds differently."""

    def student(device: str) -> tuple[nn.ModuleDict, torch.optim.Optimizer, Checkpoints]:
        model = nn.ModuleDict({"model": nn.Linear(4, 4)})
        optimizer = make_optimizer(model, Training(lr=0.1, lr_batch=0), device)
        return model, optimizer, Checkpoints(Run(tmp_path), model, optimizer, None, Accelerator(cpu=True), keep=1)

    def step(model: nn.ModuleDict, optimizer: torch.optim.Optimizer) -> None:
        model["model"](torch.eye(4)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    model, optimizer, checkpoints = student(saved_on)
    checkpoints.load()
    step(model, optimizer)
    checkpoints.save(State(update=1))
    resumed, own, checkpoints = student(loaded_on)
    checkpoints.load()
    assert {bool(group["fused"]) for group in own.param_groups} == {loaded_on == "cuda"}
    step(model, optimizer)
    step(resumed, own)
    assert_close(dict(resumed.state_dict()), dict(model.state_dict()))
