"""What a person sees while a run goes on: a live bar in a terminal, plain lines elsewhere."""

import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar


class Progress:
    """Used as a context. Quiet ones (processes other than the main one) show nothing."""

    def __init__(self, quiet: bool = False, seconds: float = 10.0) -> None:
        self.console = Console(quiet=quiet, highlight=False, soft_wrap=True)
        self.live = self.console.is_terminal and not quiet
        self.bar = Bar(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=self.console,
            disable=not self.live,
        )
        self.training = self.bar.add_task("training", start=False, total=None, text="")
        self.evaluation = self.bar.add_task("evaluating", visible=False, total=1.0, text="")
        self.seconds, self.told = seconds, 0.0  # between two plain lines
        self.updates, self.epochs, self.done, self.first = 0, 0, 0, 0
        self.since = time.perf_counter()

    def __enter__(self) -> "Progress":
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def say(self, text: str) -> None:
        self.console.print(text, markup=False)

    def start(self, done: int, updates: int, epochs: int) -> None:
        if done:
            self.say(f"going on after update {done} of {updates}")
        self.first, self.done, self.updates, self.epochs = done, done, updates, epochs
        self.since = time.perf_counter()
        self.bar.start_task(self.training)
        self.bar.update(self.training, completed=done, total=updates)

    def advance(self) -> None:
        self.done += 1
        self.bar.update(self.training, completed=self.done)

    def trained(self, record: dict[str, Any]) -> None:
        text = (
            f"epoch {record['epoch']:.1f}/{self.epochs}  loss {record['loss']:.3f}  lr {record['lr']:.2g}  "
            f"{record['images_per_second']:.0f} images/s"
        )
        self.bar.update(self.training, text=text)
        if not self.live and time.perf_counter() - self.told > self.seconds:
            self.told = time.perf_counter()
            left = (self.told - self.since) / (self.done - self.first) * (self.updates - self.done)
            self.say(f"update {record['update']}/{self.updates}  {text}  {_duration(left)} left")

    def evaluating(self, part: float) -> None:
        self.bar.update(self.evaluation, completed=part, visible=part < 1)

    def evaluated(self, record: dict[str, Any]) -> None:
        names = [name for name in record if name not in ("kind", "update", "epoch")]
        numbers = "  ".join(f"{name} {record[name]:.3f}" for name in names)
        self.say(f"epoch {record['epoch']:g}/{self.epochs}  {numbers}")


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"
