"""What is printed: the progress of a run, as a live bar in a terminal, as a line that is written again in a notebook,
as plain lines elsewhere; and tables."""

import time
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar


def literal_console(**options: Any) -> Console:
    """Prints names as they are: [brackets] and :colons: mean nothing in them. A notebook gets plain text, too."""
    return Console(highlight=False, markup=False, emoji=False, force_jupyter=False, **options)


def table_console() -> Console:
    """As wide as a table may be: a terminal's width, or 160 letters."""
    console = literal_console()
    return console if console.is_terminal else literal_console(width=160)


class Shown:
    """A context with a live bar in a terminal, and a line every few seconds elsewhere. quiet: show nothing (in
    processes other than the main one). aside: on stderr, where the bar goes when all is done; stdout is for data."""

    def __init__(self, quiet: bool = False, seconds: float = 10.0, aside: bool = False) -> None:
        self.console = literal_console(quiet=quiet, stderr=aside, soft_wrap=True)
        self.notebook = NotebookLine() if Console().is_jupyter and not quiet else None
        self.live = self.console.is_terminal and not quiet and not self.notebook
        self.bar = Bar(
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=self.console,
            disable=not self.live,
            transient=aside,
        )
        self.seconds, self.last_line = seconds, 0.0  # between two plain lines

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()
        if self.notebook:
            self.notebook.show()

    def say(self, text: str) -> None:
        self.console.print(text)

    def now_and_then(self, text: str) -> None:
        """A line if there is no bar, at most every `seconds`."""
        if self.notebook:
            self.notebook.write(text)
        elif not self.live and time.perf_counter() - self.last_line > self.seconds:
            self.last_line = time.perf_counter()
            self.say(text)


class NotebookLine:
    """A line of a cell's output that is written again and again, twice a second at most."""

    def __init__(self) -> None:
        self.text, self.since = "", 0.0
        self.handle: Any = None  # IPython's, of what is displayed

    def write(self, text: str) -> None:
        self.text = text
        if time.perf_counter() - self.since > 0.5:
            self.since = time.perf_counter()
            self.show()

    def show(self) -> None:
        from IPython.display import display

        if self.handle:
            self.handle.update({"text/plain": self.text}, raw=True)
        elif self.text:
            self.handle = display({"text/plain": self.text}, raw=True, display_id=True)


class Progress(Shown):
    """Of a training run."""

    def __init__(self, quiet: bool = False, seconds: float = 10.0) -> None:
        super().__init__(quiet, seconds)
        self.training = self.bar.add_task("training", start=False, total=None, text="")
        self.evaluation = self.bar.add_task("evaluating", visible=False, total=1.0, text="")
        self.updates, self.epochs, self.done, self.first = 0, 0.0, 0, 0
        self.since = time.perf_counter()

    def start(self, done: int, updates: int, epochs: float) -> None:
        if done:
            self.say(f"resuming after update {done} of {updates}")
        self.first, self.done, self.updates, self.epochs = done, done, updates, epochs
        self.since = time.perf_counter()
        self.bar.start_task(self.training)
        self.bar.update(self.training, completed=done, total=updates)

    def advance(self) -> None:
        self.done += 1
        self.bar.update(self.training, completed=self.done)

    def trained(self, record: dict[str, Any]) -> None:
        text = (
            f"epoch {record['epoch']:.1f}/{self.epochs:.4g}  loss {record['loss']:.3f}  lr {record['lr']:.2g}  "
            f"{record['images_per_second']:.0f} images/s"
        )
        self.bar.update(self.training, text=text)
        left = (time.perf_counter() - self.since) / max(1, self.done - self.first) * (self.updates - self.done)
        self.now_and_then(f"update {record['update']}/{self.updates}  {text}  {clock(left)} left")

    def evaluating(self, part: float) -> None:
        self.bar.update(self.evaluation, completed=part, visible=part < 1)

    def evaluated(self, record: dict[str, Any]) -> None:
        names = [name for name in record if name not in ("kind", "update", "epoch")]
        numbers = "  ".join(f"{name} {record[name]:.3f}" for name in names)
        self.say(f"epoch {record['epoch']:.4g}/{self.epochs:.4g}  {numbers}")


class Counted(Shown):
    """Progress over many items: speed, and time left."""

    def __init__(
        self, what: str, things: str, total: int, quiet: bool = False, seconds: float = 10.0, aside: bool = False
    ) -> None:
        super().__init__(quiet, seconds, aside)
        self.task = self.bar.add_task(what, total=total, text="")
        self.what, self.things, self.total = what, things, total
        self.done, self.worked = 0, 0  # in total, and by this process
        self.spared, self.begun = 0, 0  # of what was planned: what proved unnecessary, and what is under way
        self.since = self.last_line = time.perf_counter()

    def skip(self, count: int) -> None:
        """So many were done before."""
        if count:
            self.say(f"{count} of {self.total} {self.things} were done before")
        self.pass_over(count)

    def pass_over(self, count: int) -> None:
        """The next ones were done before."""
        self.done += count
        self.bar.update(self.task, completed=self.done)

    def forgo(self, count: int) -> None:
        """So many need not be done after all."""
        self.total -= count
        self.bar.update(self.task, total=self.expected)

    def begin(self, count: int) -> None:
        """So many are under way: all of them count, until they are spared."""
        self.begun += count

    def spare(self, count: int) -> None:
        """So many turned out to be unnecessary, and of those not begun probably as large a part."""
        self.spared += count
        self.begun = max(0, self.begun - count)
        self.forgo(count)

    @property
    def expected(self) -> int:
        """The total, if of what has not begun as much is spared as so far."""
        needed = self.worked / (self.worked + self.spared) if self.spared else 1.0
        left = self.total - self.done
        return self.done + min(left, self.begun) + round(max(0, left - self.begun) * needed)

    def advance(self, count: int) -> None:
        self.worked += count
        self.begun = max(0, self.begun - count)
        self.done = min(self.total, self.done + count)
        rate = max(self.worked, 1e-9) / (time.perf_counter() - self.since)
        expected, speed = self.expected, f"{rate:.1f} {self.things}/s"
        self.bar.update(self.task, completed=self.done, total=expected, text=speed)
        left = ("about " if self.spared else "") + clock((expected - self.done) / rate)
        self.now_and_then(f"{self.what}  {self.done}/{expected}  {speed}  {left} left")


def clock(seconds: float) -> str:
    """
    >>> clock(3725)
    '1:02:05'
    """
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"


def duration(seconds: float) -> str:
    """In a unit that suits it.

    >>> duration(38.2), duration(750), duration(12_400)
    ('38 seconds', '12 minutes', '3.4 hours')
    """
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 90 * 60 else f"{seconds / 3600:.1f} hours"
