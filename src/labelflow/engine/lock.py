"""One writer at a time: a lock on a folder. It ends with the process that holds it, however that ends, and says who
that is."""

import errno
import json
import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from filelock import BaseFileLock, FileLock, Timeout

from labelflow.engine.setup import best_device
from labelflow.process import is_main_process, process_count

LOCK = ".lock"
PATIENCE = 0.5  # seconds for another process to finish ending
# What file systems without locks say.
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}

Value = TypeVar("Value")


class Busy(ValueError):
    """Another process writes to the folder."""


@contextmanager
def one_writer(folder: Path, instead: str = "choose another") -> Iterator[str]:
    """The lock of a folder, which is made if it is not there, and is gone afterwards if it is still empty. Among
    launched processes the main one takes it for all. Yields '' or, where the file system has no locks, a warning.
    instead: what to do instead of waiting."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # it imports the script that started it
        raise RuntimeError(
            "this script starts labelflow again in each of its own data workers, which import it on macOS and Windows: "
            'put what trains below `if __name__ == "__main__":`'
        )
    with ExitStack() as held:
        yield on_main_process(lambda: held.enter_context(_locked(folder, instead)))


def on_main_process(function: Callable[[], Value]) -> Value:
    """What it returns there, in all processes; and what it raises, so that all of them stop."""
    if process_count() == 1:
        return function()
    PartialState(cpu=best_device().type == "cpu")  # as Accelerator makes it, which may come later
    outcome: list[Any] = [None, None]
    if is_main_process():
        try:
            outcome[0] = function()
        except Exception as error:
            outcome[1] = error
    result, problem = broadcast_object_list(outcome)
    if problem is not None:
        raise problem
    return result


@contextmanager
def _locked(folder: Path, instead: str) -> Iterator[str]:
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; name a folder")
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    lock = FileLock(folder / LOCK, timeout=PATIENCE, fallback_to_soft=False, on_acquired=partial(_take, folder / LOCK))
    try:
        yield _acquire(lock, folder, instead)
    finally:
        if lock.is_locked:
            with suppress(OSError):  # before it is released: whoever gets it then notices, and makes another
                (folder / LOCK).unlink()
            lock.release()
        with suppress(OSError):  # until one is not empty
            for path in missing:
                path.rmdir()


def _acquire(lock: BaseFileLock, folder: Path, instead: str) -> str:
    """'', or a warning if there are no locks here."""
    for _ in range(100):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
            return ""
        except FileNotFoundError:  # another process has just removed it, or its empty folder
            continue
        except Timeout:
            raise Busy(f"{folder} is in use{_holder(folder)}; wait until it is free, or {instead}") from None
        except PermissionError:
            raise ValueError(f"{folder / LOCK} is not yours to lock; if nothing runs there, remove it") from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            reason = os.strerror(error.errno)
            return f"{folder} is on a file system without locks ({reason}): start nothing else that writes there"
    raise Busy(f"{folder} is in use by processes that start and fail; try again")


def _take(path: Path, descriptor: int) -> None:
    """Write down who holds the lock. FileNotFoundError if its file has been removed since it was opened."""
    if not os.path.samestat(os.fstat(descriptor), path.stat()):
        raise FileNotFoundError(path)
    who = {
        "process": os.getpid(),
        "host": socket.gethostname(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
        "command": " ".join(sys.argv),
    }
    with suppress(OSError):  # a full disk: it is held all the same
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps(who).encode())


def _holder(folder: Path) -> str:
    """Who holds the lock, as far as that is known."""
    try:
        who = json.loads((folder / LOCK).read_bytes())
        return f" by process {who['process']} on {who['host']} since {who['since']} ({who['command']})"
    except (OSError, ValueError, KeyError, TypeError):
        return " by another process"
