"""Checkpoints: all that a run needs to resume, bit for bit. Loading one executes no code.

checkpoints/00001200/   model.safetensors  ema.safetensors  optimizer.pt  state.json  checksums.json
                        heads.safetensors, ema_heads.safetensors: what is trained beside the model, if anything
                        memory.safetensors: what training needs of earlier micro-batches, if anything
model.safetensors, last.safetensors   in the run's folder: weights alone, of the best and of the newest checkpoint
heads.safetensors, last_heads.safetensors   the same of what is trained beside the model
"""

import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

import torch
from accelerate import Accelerator
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful

from labelflow.engine.ema import Ema
from labelflow.engine.lock import on_main_process
from labelflow.engine.run import BEST, HEADS, LAST, Run
from labelflow.files import atomic_folder, atomic_write, check_file, folder_problem, forget_file

FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)
PREFIX = "model."  # of the model's weights in the trained student
FILES = ("model.safetensors", "heads.safetensors")  # of a checkpoint: the model, and what is trained beside it
EMA_FILES = ("ema.safetensors", "ema_heads.safetensors")


@dataclass
class State:
    """The progress of a run. Randomness is a function of `update`, so there is no random state to save."""

    update: int = 0  # updates done
    best: float | None = None  # the headline metric of the best checkpoint, and its update
    best_update: int = -1
    scaler: dict[str, Any] | None = None  # of float16's gradient scaler
    identity: str = ""  # of the run


class Checkpoints:
    def __init__(
        self,
        run: Run,
        student: nn.Module,
        optimizer: torch.optim.Optimizer,
        ema: Ema | None,
        accelerator: Accelerator,
        keep: int,
        tell: Callable[[str], None] = print,
        identity: str = "",
        memory: Stateful | None = None,
    ) -> None:
        """identity: of the run; checkpoints that have another one are not resumed from."""
        self.run, self.student, self.optimizer, self.ema, self.memory = run, student, optimizer, ema, memory
        self.accelerator, self.keep, self.tell, self.identity = accelerator, keep, tell, identity

    def save(self, state: State) -> None:
        """Collective: all processes call it, the main one writes."""
        folder = self._folder(state.update)
        weights, optimizer = get_state_dict(self.student, self.optimizer, options=FULL)
        average = self.ema.state() if self.ema else None
        memory = self._gather_memory() if self.memory else None
        if self.accelerator.scaler is not None:
            state.scaler = self.accelerator.scaler.state_dict()
        if self.accelerator.is_main_process:
            if not folder.exists():  # one that exists is complete, and identical
                try:
                    with atomic_folder(folder, checked=True) as draft:
                        _save(weights, draft, *FILES)
                        if average is not None:
                            _save(average, draft, *EMA_FILES)
                        if memory:
                            save_file(memory, draft / "memory.safetensors")
                        torch.save(optimizer, draft / "optimizer.pt")
                        (draft / "state.json").write_text(json.dumps(asdict(state)), encoding="utf-8")
                except (OSError, RuntimeError, SafetensorError) as error:  # a full disk raises any of these
                    raise OSError(f"cannot write {folder} (earlier checkpoints are kept): {error}") from error
            self._publish(LAST, state.update)
            if state.best_update == state.update:
                self._publish(BEST, state.update)
            self.run.seal_metrics()
            self._prune()
        self.accelerator.wait_for_everyone()

    def load(self) -> State:
        """Resume from the newest intact checkpoint, or start from scratch if there is none at all."""
        folders = self.run.checkpoints()
        self._check_agreement(int(folders[-1].name) if folders else 0)
        folder = on_main_process(self._newest_intact)
        if folder is None:
            return State(identity=self.identity)
        state = _state(folder)
        weights: dict[str, Any] = _load(folder, *FILES)
        optimizer = torch.load(folder / "optimizer.pt", weights_only=True)
        for group in optimizer["param_groups"]:
            if "fused" in group:  # is up to this device, not to the one that the checkpoint was saved on
                group["fused"] = self.optimizer.defaults["fused"]
        with _untrained(self.accelerator.unwrap_model(self.student), optimizer["state"]):
            set_state_dict(
                self.student,
                self.optimizer,
                model_state_dict=weights,
                optim_state_dict=optimizer,
                options=FULL,
            )
        if self.ema:
            self.ema.load({**weights, **_load(folder, *EMA_FILES)})  # earlier versions had no average of heads
        del weights  # mapped from files, which Windows neither replaces nor removes as long as they are
        if self.memory and (folder / "memory.safetensors").exists():
            memory = load_file(folder / "memory.safetensors")
            own = slice(self.accelerator.process_index, None, self.accelerator.num_processes)
            device = self.accelerator.device
            self.memory.load_state_dict({name: value[own].to(device, copy=True) for name, value in memory.items()})
            del memory
        if self.accelerator.scaler is not None and state.scaler:
            self.accelerator.scaler.load_state_dict(state.scaler)
        if on_main_process(partial(self._go_back_to, state)):
            state.best, state.best_update = None, -1
        return state

    def _gather_memory(self) -> dict[str, torch.Tensor]:
        """Of all processes, (micro-batches, ...) each, in the order of micro-batches: process r of R has r, r+R, …"""
        assert self.memory
        processes = self.accelerator.num_processes
        return {
            name: self.accelerator.gather(value).cpu().unflatten(0, (processes, -1)).transpose(0, 1).flatten(0, 1)
            for name, value in self.memory.state_dict().items()
        }

    def _go_back_to(self, state: State) -> bool:
        """The rest of the folder as it was then: weights may not have been published before a kill, or be damaged
        since. Returns whether there were best ones that are gone."""
        self._publish(LAST, state.update)
        self._publish(BEST, state.best_update)
        self.run.rewind(state.update)
        return state.best is not None and not self.run.has(BEST)

    def _newest_intact(self) -> Path | None:
        """Removes what a kill left, and damaged checkpoints, of which newer ones will be made again."""
        for draft in (self.run / "checkpoints").glob(".*.draft"):
            shutil.rmtree(draft, ignore_errors=True)
        problems = {folder: self._problem(folder) for folder in self.run.checkpoints()}
        intact = [folder for folder, problem in problems.items() if not problem]
        damaged = [folder for folder, problem in problems.items() if problem]
        if damaged and not intact:
            why = "; ".join(reversed(problems.values()))
            raise ValueError(
                f"{self.run.folder} has no intact checkpoint: {why}. Its weights may be intact: a new run starts from "
                f"them with --init {quote(str(self.run.folder))}"
            )
        if not intact:
            self.run.rewind(0)
            return None
        if self._folder(_state(intact[-1]).best_update) not in intact:
            self._check_best(made_again=bool(damaged) and damaged[-1] > intact[-1])  # before anything is removed
        for folder in damaged:
            done = f"going back to {intact[-1]}" if folder > intact[-1] else f"{folder} is removed"
            self.tell(f"{problems[folder]}; {done}")
            shutil.rmtree(folder)
        self._prune()
        return intact[-1]

    def _check_best(self, made_again: bool) -> None:
        """Damaged best weights are an error, unless the checkpoint that they were damaged with will be made again."""
        for name in (BEST, HEADS[BEST]):
            try:
                if self.run.has(name):
                    check_file(self.run / name)
            except ValueError:
                if not made_again:
                    raise
                forget_file(self.run / name)
                self.tell(f"{self.run / name} is damaged, too, and removed; the next evaluation writes it again")

    def _problem(self, folder: Path) -> str:
        """Why a checkpoint can't be used; '' if it can."""
        if problem := folder_problem(folder):
            return problem
        try:
            own = _state(folder).identity == self.identity
        except (TypeError, ValueError):
            return f"{folder / 'state.json'} was written by another version of labelflow"
        return "" if own else f"{folder / 'state.json'} is from another run"

    def _prune(self) -> None:
        for old in self.run.checkpoints()[: -self.keep]:
            shutil.rmtree(old, ignore_errors=True)

    def _check_agreement(self, update: int) -> None:
        """Check that all processes see the same files."""
        found = torch.tensor([update, -update], device=self.accelerator.device)
        newest, oldest = self.accelerator.reduce(found, "max").tolist()
        if newest != -oldest:
            raise ValueError(
                f"processes see different checkpoints in {self.run.folder}; it must be on a shared file system"
            )

    def _publish(self, name: str, update: int) -> None:
        """The weights of a checkpoint that is still there, as the newest or the best: the EMA's if there is one."""
        for file, published in zip(EMA_FILES if self.ema else FILES, (name, HEADS[name]), strict=True):
            weights = self._folder(update) / file
            if weights.exists():
                with atomic_write(self.run / published, checked=True) as draft:
                    _link(weights, draft)

    def _folder(self, update: int) -> Path:
        return self.run / "checkpoints" / f"{update:08d}"


@contextmanager
def _untrained(student: nn.Module, states: Collection[str]) -> Iterator[None]:
    """Inside, parameters that have no optimizer state yet, since they were frozen so far, need no gradients: otherwise
    torch would ask for their state, or make some."""
    named = student.named_parameters()
    without = [parameter for name, parameter in named if parameter.requires_grad and name not in states]
    without = without if states else []  # of an optimizer without any, as it was
    for parameter in without:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in without:
            parameter.requires_grad_(True)


def _state(folder: Path) -> State:
    return State(**json.loads((folder / "state.json").read_bytes()))


def _save(weights: dict[str, Any], folder: Path, model_file: str, heads_file: str) -> None:
    """The model's weights under its own names, and the rest of the student's, if any."""
    model = {name.removeprefix(PREFIX): value for name, value in weights.items() if name.startswith(PREFIX)}
    heads = {name: value for name, value in weights.items() if not name.startswith(PREFIX)}
    save_file(_contiguous(model), folder / model_file)
    if heads:
        save_file(_contiguous(heads), folder / heads_file)


def _load(folder: Path, model_file: str, heads_file: str) -> dict[str, torch.Tensor]:
    """Both, under the student's names."""
    model = {PREFIX + name: value for name, value in load_file(folder / model_file).items()}
    return model | (load_file(folder / heads_file) if (folder / heads_file).exists() else {})


def _contiguous(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """As safetensors requires: contiguous, no shared memory."""
    return {name: value.detach().contiguous().clone() for name, value in weights.items()}


def _link(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # the file system has no hard links
        shutil.copyfile(source, target)
