"""A run that was killed and resumed ends as one that was left alone, bit for bit."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from torch import nn
from torch.testing import assert_close

from labelflow.engine import Run, Training
from labelflow.engine.checkpoint import Checkpoints, State
from labelflow.engine.optim import make_optimizer

KILLS = {"classify": 12, "segment": 2, "detect": 2}  # half of them in the middle of a save


def test_killed_runs_end_alike(tmp_path: Path) -> None:
    asked = [str(part) for pair in KILLS.items() for part in pair]
    command = [sys.executable, str(Path(__file__).parent / "survive.py"), str(tmp_path), *asked]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    for task, kills in KILLS.items():
        assert f"{task} {kills} of {kills} ends identical" in done.stdout, done.stdout
    least = sum(KILLS.values()) * 2 // 3
    assert len(re.findall(": killed", done.stdout)) >= least, done.stdout  # the kills did come in time


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
