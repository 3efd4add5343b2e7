"""Run cells: each in a process of its own, --jobs at a time, or all in the processes of `torchrun`.

With --join, several instances of the same comparison run at once, for example one per GPU: a cell that another instance
is training is skipped.
"""

import multiprocessing
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from filelock import FileLock, Timeout

from labelflow.comparison.cells import Cell, Finish, Result, run_cell
from labelflow.engine.lock import Busy
from labelflow.process import print_anything, process_count

# A server that has imported torch must not fork on macOS; Windows has none.
HOW = "forkserver" if sys.platform == "linux" else "spawn"
_Context: Any = type(multiprocessing.get_context(HOW))


def run_cells(
    cells: list[Cell],
    out: Path,
    jobs: int,
    done: Callable[[Cell, Result | Exception | None], None],
    finish: Finish | None = None,
    quiet: bool = False,
) -> None:
    """Train all of them. `done` receives the result of each, its exception, or None if another instance is training it.
    `finish`, which must be picklable, adds to the results."""
    if process_count() > 1:
        if jobs > 1:
            raise ValueError("launched processes share each cell: omit --jobs")
        for cell in cells:
            try:
                done(cell, run_cell(cell, out, quiet, last=cell is cells[-1], finish=finish))
            except Busy:
                done(cell, None)
        return
    context = _CellContext()
    if HOW == "forkserver":
        context.set_forkserver_preload(["labelflow.comparison.runner"])  # with everything imported
    # A new process for each cell, so that peak memory is its own.
    with ProcessPoolExecutor(jobs, context, _begin, (jobs,), max_tasks_per_child=1) as pool, _forward_sigterm():
        queue, running = iter(cells), dict[Future[Result | None], Cell]()
        while True:
            for cell in islice(
                queue, jobs - len(running)
            ):  # only as many as can start now: a pool cannot take work back
                running[pool.submit(_work, cell, out, quiet or jobs > 1, finish)] = cell
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                cell = running.pop(future)
                try:
                    done(cell, future.result())
                except BrokenProcessPool:
                    raise ValueError(
                        f"a process was killed while training {cell.method}, seed {cell.seed}, or another cell; it may "
                        "have run out of memory. Run the same command to continue, perhaps with fewer --jobs"
                    ) from None
                except (ValueError, OSError, torch.OutOfMemoryError) as error:
                    done(cell, error)


class _CellProcess(_Context.Process):
    """Leaves the caller's script alone. Other processes run it again when they start, and so would compare again; a
    cell needs nothing of it."""

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            return _Context.Process._Popen(process_obj)
        finally:
            sys.modules["__main__"] = main


class _CellContext(_Context):
    Process = _CellProcess


def _work(cell: Cell, out: Path, quiet: bool, finish: Finish | None) -> Result | None:
    with _claimed(out / "runs" / f".{cell.name}.lock") as mine:
        return (cell.finished(out) or run_cell(cell, out, quiet, finish=finish)) if mine else None


def _begin(jobs: int) -> None:
    """In a new process. Its data workers start as they do elsewhere: started as it was, each would import torch."""
    multiprocessing.set_start_method(None, force=True)
    print_anything()
    torch.set_num_threads(max(1, torch.get_num_threads() // jobs))


@contextmanager
def _claimed(lock: Path) -> Iterator[bool]:
    """Whether this process got the lock, which it keeps while in the context."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    held = FileLock(lock)
    try:
        held.acquire(blocking=False)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        held.release()


@contextmanager
def _forward_sigterm() -> Iterator[None]:
    """Ctrl-C reaches all processes of a terminal, but a scheduler's SIGTERM may reach this one only. In another thread
    than the main one, which alone receives signals, nothing is done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def forward(number: int, frame: Any) -> None:
        for child in multiprocessing.active_children():
            child.terminate()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, forward)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
