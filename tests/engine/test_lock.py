"""One writer at a time, whatever happens to it; and nothing is left behind."""

import errno
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from labelflow.engine import lock
from labelflow.engine.lock import Busy, one_writer


@contextmanager
def child(work: Callable[[], None]) -> Iterator[int]:
    """A process that does something and then waits until it is killed, once it has begun to wait."""
    ready, done = os.pipe()
    pid = os.fork()
    if not pid:
        work()
        os.write(done, b"!")
        signal.pause()
    try:
        os.read(ready, 1)
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)
        os.close(done)


def held(folder: Path) -> Callable[[], None]:
    keep = []  # an open context, until the process ends

    def hold() -> None:
        keep.append(one_writer(folder))
        keep[0].__enter__()

    return hold


def test_a_second_writer_is_told_who_the_first_is(tmp_path: Path) -> None:
    with child(held(tmp_path)) as holder:
        who = rf"{tmp_path} is in use by process {holder} on \S+ since \d{{4}}-.* \(.+\); wait"
        with pytest.raises(Busy, match=who), one_writer(tmp_path):
            raise AssertionError
        assert (tmp_path / ".lock").exists()
    with one_writer(tmp_path, "leave it") as warning:
        assert warning == ""
        with pytest.raises(Busy, match="wait until it is free, or leave it"), one_writer(tmp_path, "leave it"):
            raise AssertionError


def test_a_killed_writer_leaves_no_lock_though_its_children_live(tmp_path: Path) -> None:
    def fork() -> None:
        held(tmp_path)()
        if not os.fork():  # as a data worker, which notices some seconds later
            (tmp_path / "worker").write_text(str(os.getpid()))
            time.sleep(60)
            os._exit(0)
        while not (tmp_path / "worker").exists() or not (tmp_path / "worker").read_text():
            time.sleep(0.01)

    with child(fork):
        pass
    worker = int((tmp_path / "worker").read_text())
    os.kill(worker, 0)  # lives
    with one_writer(tmp_path):
        pass
    os.kill(worker, signal.SIGKILL)


def test_a_folder_that_stays_empty_is_gone_afterwards(tmp_path: Path) -> None:
    with suppress(KeyError), one_writer(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b").is_dir()
        raise KeyError
    assert list(tmp_path.iterdir()) == []
    with one_writer(tmp_path / "a" / "b"):
        (tmp_path / "a" / "b" / "c").touch()
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["c"]


def test_threads_exclude_each_other(tmp_path: Path) -> None:
    inside, most = [0], [0]

    def write() -> None:
        try:
            with one_writer(tmp_path):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(0.01)
                inside[0] -= 1
        except Busy:
            pass

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(ValueError, match="a is a file; name a folder"), one_writer(tmp_path / "a"):
        raise AssertionError


def test_a_lock_whose_file_was_removed_is_no_lock(tmp_path: Path) -> None:
    """As NFS leaves it to those who had opened it before: under another name."""
    opened = os.open(tmp_path / "old", os.O_CREAT)
    (tmp_path / ".lock").touch()
    with pytest.raises(FileNotFoundError):
        lock._take(tmp_path / ".lock", opened)
    os.close(opened)


@pytest.mark.parametrize("reason", [errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks_is_said(tmp_path: Path, reason: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any) -> None:
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr(FileLock, "_acquire", refuse)
    with one_writer(tmp_path / "run") as warning:
        assert warning.startswith(f"{tmp_path / 'run'} is on a file system without locks ({os.strerror(reason)})")
    assert list(tmp_path.iterdir()) == []


def test_a_script_that_its_own_data_workers_start_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As multiprocessing marks a process that is importing the script which started it."""
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(RuntimeError, match='below `if __name__ == "__main__":`'), one_writer(tmp_path):
        raise AssertionError
