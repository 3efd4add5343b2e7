"""Checkpoints: all that a run needs to resume, bit for bit. Loading one executes no code.

checkpoints/00001200/   model.safetensors  ema.safetensors  optimizer.pt  state.json
                        heads.safetensors: what is trained beside the model, if anything
model.safetensors, last.safetensors   in the run's folder: weights alone, of the best and of the newest checkpoint
"""

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from labelflow.engine.ema import Ema
from labelflow.engine.run import BEST, LAST, Run
from labelflow.files import atomic_folder, atomic_write

FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)
PREFIX = "model."  # of the model's weights in the trained student


@dataclass
class State:
    """The progress of a run. Randomness is a function of `update`, so there is no random state to save."""

    update: int = 0  # updates done
    best: float | None = None  # the headline metric of the best checkpoint, and its update
    best_update: int = -1
    scaler: dict[str, Any] | None = None  # of float16's gradient scaler


class Checkpoints:
    def __init__(
        self,
        run: Run,
        student: nn.Module,
        optimizer: torch.optim.Optimizer,
        ema: Ema | None,
        accelerator: Accelerator,
        keep: int,
    ) -> None:
        self.run, self.student, self.optimizer, self.ema = run, student, optimizer, ema
        self.accelerator, self.keep = accelerator, keep

    def save(self, state: State) -> None:
        """Collective: all processes call it, the main one writes."""
        folder = self.run / "checkpoints" / f"{state.update:08d}"
        weights, optimizer = get_state_dict(self.student, self.optimizer, options=FULL)
        average = self.ema.state() if self.ema else None
        if self.accelerator.scaler is not None:
            state.scaler = self.accelerator.scaler.state_dict()
        if self.accelerator.is_main_process:
            if not folder.exists():  # one that exists is complete, and identical
                try:
                    with atomic_folder(folder) as draft:
                        model, heads = _split(weights)
                        save_file(model, draft / "model.safetensors")
                        if heads:
                            save_file(heads, draft / "heads.safetensors")
                        if average is not None:
                            save_file(_contiguous(average), draft / "ema.safetensors")
                        torch.save(optimizer, draft / "optimizer.pt")
                        (draft / "state.json").write_text(json.dumps(asdict(state)))
                except (OSError, RuntimeError, SafetensorError) as error:  # a full disk raises any of these
                    raise OSError(f"cannot write {folder} (earlier checkpoints are kept): {error}") from error
            self._publish(folder, state)
            for old in self.run.checkpoints()[: -self.keep]:
                shutil.rmtree(old, ignore_errors=True)
        self.accelerator.wait_for_everyone()

    def load(self) -> State:
        """Resume from the newest checkpoint, or start from scratch if there is none."""
        folders = self.run.checkpoints()
        self._check_agreement(int(folders[-1].name) if folders else 0)
        if self.accelerator.is_main_process:
            for draft in (self.run / "checkpoints").glob(".*.draft"):  # left by a kill
                shutil.rmtree(draft, ignore_errors=True)
        if not folders:
            if self.accelerator.is_main_process:
                self.run.rewind(0)
            self.accelerator.wait_for_everyone()
            return State()
        state = State(**json.loads((folders[-1] / "state.json").read_text()))
        weights: dict[str, Any] = {
            PREFIX + name: value for name, value in load_file(folders[-1] / "model.safetensors").items()
        }
        if (folders[-1] / "heads.safetensors").exists():
            weights |= load_file(folders[-1] / "heads.safetensors")
        optimizer = torch.load(folders[-1] / "optimizer.pt", weights_only=True)
        for group in optimizer["param_groups"]:
            if "fused" in group:  # is up to this device, not to the one that the checkpoint was saved on
                group["fused"] = self.optimizer.defaults["fused"]
        set_state_dict(
            self.student,
            self.optimizer,
            model_state_dict=weights,
            optim_state_dict=optimizer,
            options=FULL,
        )
        if self.ema:
            self.ema.load(load_file(folders[-1] / "ema.safetensors"))
        if self.accelerator.scaler is not None and state.scaler:
            self.accelerator.scaler.load_state_dict(state.scaler)
        if self.accelerator.is_main_process:
            self._publish(folders[-1], state)  # in case a kill came before it was published
            self.run.rewind(state.update)
        self.accelerator.wait_for_everyone()
        return state

    def _check_agreement(self, update: int) -> None:
        """Check that all processes see the same files."""
        found = torch.tensor([update, -update], device=self.accelerator.device)
        newest, oldest = self.accelerator.reduce(found, "max").tolist()
        if newest != -oldest:
            raise ValueError(
                f"processes see different checkpoints in {self.run.folder}; it must be on a shared file system"
            )

    def _publish(self, folder: Path, state: State) -> None:
        """Write the newest weights, and the best if these are: the EMA weights if there are any."""
        weights = folder / ("ema.safetensors" if self.ema else "model.safetensors")
        is_best = state.best_update == state.update
        for name in (LAST, BEST) if is_best else (LAST,):
            with atomic_write(self.run / name) as draft:
                _link(weights, draft)


def _split(weights: dict[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The model's weights under its own names, and the rest of the student's."""
    model = {name.removeprefix(PREFIX): value for name, value in weights.items() if name.startswith(PREFIX)}
    heads = {name: value for name, value in weights.items() if not name.startswith(PREFIX)}
    return _contiguous(model), _contiguous(heads)


def _contiguous(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """As safetensors requires: contiguous, no shared memory."""
    return {name: value.detach().contiguous().clone() for name, value in weights.items()}


def _link(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # the file system has no hard links
        shutil.copyfile(source, target)
