"""The training loop."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor

from labelflow.chance import Purpose, generator, seed_of
from labelflow.data import Problem, on_device
from labelflow.engine.checkpoint import Checkpoints
from labelflow.engine.ema import Ema, local
from labelflow.engine.evaluation import evaluate
from labelflow.engine.freezing import Freezing
from labelflow.engine.optim import make_optimizer, make_schedule
from labelflow.engine.progress import Progress
from labelflow.engine.run import DETAILS, Run
from labelflow.engine.settings import CUDA_GRAPHS, Training
from labelflow.engine.setup import autocast_forward
from labelflow.engine.task import Task
from labelflow.loss import Term, total


class Interrupted(KeyboardInterrupt):
    """The run received a signal to stop, and saved a checkpoint."""


def train(
    task: Task, training: Training, run: Run, accelerator: Accelerator, progress: Progress, identity: str = ""
) -> dict[str, float]:
    """Train from the newest checkpoint of the run to the end; returns the metrics of the last evaluation.

    identity: of the run, which its checkpoints carry.
    """
    per_epoch = task.samples // training.batch
    updates = training.total_updates(per_epoch)
    accumulated = training.batch // training.micro_batch // accelerator.num_processes

    torch.backends.cudnn.benchmark = task.one_size and not training.deterministic
    if training.compile:
        task.student.compile(mode=training.compile, dynamic=False)  # another batch size is compiled for itself
    if accelerator.is_fsdp2:
        autocast_forward(task.student, accelerator)
    model = task.student.model
    freezing = Freezing(model, training, per_epoch)
    optimizer = make_optimizer(task.student, training, accelerator.device.type)
    student, optimizer = accelerator.prepare(task.student, optimizer)
    schedule = make_schedule(optimizer.optimizer, training, per_epoch)
    ema = Ema(task.student, training.ema) if training.ema else None  # with the heads beside the model
    checkpoints = Checkpoints(
        run, student, optimizer.optimizer, ema, accelerator, training.keep, progress.say, identity, task.memory
    )
    state = checkpoints.load()
    ledger = Ledger(run, accelerator, training, per_epoch, progress)
    metrics = _last_evaluation(run)
    problems: list[Problem] = []  # unreadable samples since the last report

    student.train()
    read = task.train_batches(updates, state.update, accelerator.process_index, accelerator.num_processes)
    batches = on_device(read, accelerator.device)
    progress.start(state.update, updates, updates / per_epoch)
    with _stop_signals() as stop_requested:
        for update in range(state.update, updates):
            lr = schedule(update)
            if training.compile in CUDA_GRAPHS:
                torch.compiler.cudagraph_mark_step_begin()  # what graphs returned for the last update is done with
            for step in range(accumulated):
                batch = next(batches)
                problems += batch.problems
                place = step * accelerator.num_processes + accelerator.process_index
                torch.manual_seed(seed_of(training.seed, Purpose.MODEL, update, place))
                freezing.begin(update)
                with accelerator.accumulate(student):
                    terms = task.terms(student, batch, generator(training.seed, Purpose.MIX, update, place))
                    accelerator.backward(total(terms))
                    if accelerator.sync_gradients:
                        freezing.drop_gradients()
                    if training.clip and accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(student.parameters(), training.clip)
                    optimizer.step()
                    optimizer.zero_grad()
                ledger.add(update, terms)
            if ema:
                ema.update()
            state.update = update + 1
            progress.advance()

            epoch, epoch_ends = state.update // per_epoch, state.update % per_epoch == 0
            last, log_due = state.update == updates, state.update % training.log_updates == 0
            should_evaluate = last or (epoch_ends and epoch % training.eval_epochs == 0)
            stop = (log_due or accelerator.num_processes == 1) and stop_requested(accelerator)
            should_save = should_evaluate or stop or state.update % training.save_updates == 0
            if log_due or epoch_ends or should_save:
                ledger.write(state.update, lr)
                task.unreadable(gather_object(problems))
                problems = []
            if should_save:
                _check_finite(student, state.update, accelerator)  # weights that are not finite are never saved
            if should_evaluate:
                metrics = _evaluate(task, student, ema, accelerator, progress)
                ledger.evaluated(state.update, metrics)
                if accelerator.is_main_process and (details := task.details()):
                    run.write(DETAILS, details)
                headline = metrics[f"ema_{task.headline}" if ema else task.headline]
                if state.best is None or headline > state.best:
                    state.best, state.best_update = headline, state.update
            if should_save:
                checkpoints.save(state)
                ledger.start_clock()
            if stop and not last:
                raise Interrupted(f"stopped after update {state.update} of {updates}, checkpoint saved")
    return metrics


def _evaluate(
    task: Task, student: torch.nn.Module, ema: Ema | None, accelerator: Accelerator, progress: Progress
) -> dict[str, float]:
    """Metrics of the model, and of its EMA with the prefix ema_."""
    metrics = evaluate(task, student, accelerator, progress.evaluating)
    if ema:
        with ema.weights():
            average = evaluate(task, student, accelerator, progress.evaluating)
        metrics |= {f"ema_{name}": value for name, value in average.items()}
    return metrics


@torch.no_grad()
def _check_finite(model: torch.nn.Module, update: int, accelerator: Accelerator) -> None:
    """The loss was computed before the update; this checks the weights after it."""
    bad = torch.stack([(~local(value).isfinite()).any() for value in model.parameters()]).any().float()
    if accelerator.reduce(bad, "sum").item():
        raise ValueError(
            f"the weights are not finite after update {update}; the last good checkpoint is kept. Try a smaller --lr "
            "or --clip 1"
        )


def _last_evaluation(run: Run) -> dict[str, float]:
    lines = [line for line in run.metrics() if line["kind"] == "eval"]
    return (
        {name: value for name, value in lines[-1].items() if name not in ("kind", "update", "epoch")} if lines else {}
    )


class Ledger:
    """Losses since the last line of metrics. They stay on the device until a line is due, to avoid a synchronization at
    every update."""

    def __init__(
        self, run: Run, accelerator: Accelerator, training: Training, per_epoch: int, progress: Progress
    ) -> None:
        self.run, self.accelerator, self.training, self.per_epoch = run, accelerator, training, per_epoch
        self.progress = progress
        self.names: list[str] = []
        self.values: list[tuple[int, Tensor]] = []  # update, (terms + 1,): the terms, then the loss
        self.start_clock()

    def start_clock(self) -> None:
        self.since = time.perf_counter()

    def add(self, update: int, terms: list[Term]) -> None:
        self.names = [term.name for term in terms]
        values = torch.stack([*(term.value.detach() for term in terms), total(terms).detach()])
        self.values.append((update, values.float()))

    def write(self, update: int, lr: float) -> None:
        """Write a line of metrics, after checking that all losses are finite."""
        if not self.values:
            return
        values = torch.stack([value for _, value in self.values])
        values = self.accelerator.reduce(values, "mean").cpu()  # NaN and infinity propagate
        for (at, _), row in zip(self.values, values.tolist(), strict=True):
            if not math.isfinite(sum(row)):
                raise ValueError(
                    f"the loss is not finite at update {at} (epoch {at // self.per_epoch}, learning rate {lr:.3g}): "
                    f"{', '.join(f'{name} {value:g}' for name, value in zip(self.names, row, strict=False))}. The "
                    f"last good checkpoint is kept in {self.run.folder}; try a smaller --lr or --clip 1"
                )
        passed = time.perf_counter() - self.since
        updates = len({at for at, _ in self.values})
        means = values.mean(0).tolist()
        record = {
            "kind": "train",
            "update": update,
            "epoch": update / self.per_epoch,
            "loss": means[len(self.names)],
            **{f"loss_{name}": value for name, value in zip(self.names, means, strict=False)},
            "lr": lr,
            "images_per_second": updates * self.training.batch / passed,
        }
        self.values = []
        self.progress.trained(record)
        self._log(record, update)
        self.start_clock()

    def evaluated(self, update: int, metrics: dict[str, float]) -> None:
        record = {"kind": "eval", "update": update, "epoch": update / self.per_epoch, **metrics}
        self.progress.evaluated(record)
        self._log(record, update)
        self.start_clock()

    def _log(self, record: dict[str, Any], update: int) -> None:
        if self.accelerator.is_main_process:
            self.run.log(record)
        if self.training.tracker:
            kind = record["kind"]
            numbers = {f"{kind}/{name}": value for name, value in record.items() if name not in ("kind", "update")}
            self.accelerator.log(numbers, step=update)


@contextmanager
def _stop_signals() -> Iterator[Callable[[Accelerator], bool]]:
    """Ctrl-C and SIGTERM stop all processes together, after the current update. A second Ctrl-C stops at once. Only the
    main thread receives signals: in another one, nothing stops a run early."""
    received: list[int] = []

    def receive(number: int, frame: Any) -> None:
        received.append(number)
        signal.signal(signal.SIGINT, before[signal.SIGINT])

    heard = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, receive) for number in heard}

    def stop_requested(accelerator: Accelerator) -> bool:
        if accelerator.num_processes == 1:
            return bool(received)
        count = accelerator.reduce(torch.tensor(float(len(received)), device=accelerator.device), "sum")
        return bool(count.item())

    try:
        yield stop_requested
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
