"""Samples that cannot be read: counted while a model is trained, and looked for before."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from multiprocessing.pool import ThreadPool
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import NamedTuple

from PIL import Image

from labelflow.data.checked import CheckedFiles
from labelflow.data.images import read
from labelflow.spec import printable

ENDS = {"JPEG": b"\xff\xd9", "PNG": b"IEND\xaeB\x60\x82", "GIF": b";"}  # the last bytes of a complete file


class Problem(NamedTuple):
    """Why a sample could not be read."""

    name: str  # of the sample
    reason: str

    def __str__(self) -> str:
        reason = self.reason.removesuffix(f" {self.name!r}").removesuffix(":")  # PIL's and Python's ways to name it
        return printable(reason if reason.startswith(self.name) else f"{self.name}: {reason}")


class Unreadable:
    """Reports each unreadable sample once, and stops when there are more than a limit."""

    def __init__(self, limit: int, tell: Callable[[str], None], hint: str = "") -> None:
        """hint: ends the message, if there are more."""
        self.limit, self.tell, self.hint = limit, tell, hint
        self.seen: set[str] = set()  # names of samples

    def __call__(self, problems: Iterable[Problem]) -> None:
        new = {problem.name: problem for problem in problems if problem.name not in self.seen}
        self.seen |= new.keys()
        if new and len(self.seen) > self.limit:
            raise ValueError(self._refusal(list(map(str, new.values()))))
        for problem in new.values():
            self.tell(f"skipped {problem}")

    def _refusal(self, new: list[str]) -> str:
        count = len(self.seen)
        what = new[0] if count == 1 else f"{count} images: {'; '.join(new[:3])}{' …' if len(new) > 3 else ''}"
        allowed = f"{self.limit} were allowed" if self.limit else "none was allowed"
        them = "it" if count == 1 else "them"
        remedy = f"fix or remove {them}, or skip {them} with --skip-unreadable {count}"
        return f"cannot read {what} ({allowed}); {remedy}{self.hint}"


class FileCheck:
    """Looks at the files of images in the background.

    root: the folder that all of them lie in. What `labelflow data check` has read there, and has not changed since, is
    not looked at again. What it could not read comes first, and is read completely.
    """

    def __init__(self, paths: Sequence[str], root: Path | None = None, threads: int = 4) -> None:
        self._new: SimpleQueue[Problem] = SimpleQueue()
        self._stopped = False
        self._thread = Thread(target=self._look, args=(paths, root, threads), daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> None:
        """Until it has seen all files, but no longer than this."""
        self._thread.join(seconds)

    def found(self) -> list[Problem]:
        """Since it was last asked."""
        return [self._new.get() for _ in range(self._new.qsize())]

    def stop(self) -> None:
        self._stopped = True

    def _look(self, paths: Sequence[str], root: Path | None, threads: int) -> None:
        with ThreadPool(threads) as pool:
            if root is not None:
                checked = CheckedFiles(root)
                self._check(partial(check_file, completely=True), checked.find_unreadable(paths), pool)
                paths = checked.find_new(paths)
            self._check(check_file, paths, pool)

    def _check(self, check: Callable[[str], Problem | None], paths: Sequence[str], pool: ThreadPool) -> None:
        parts = [slice(first, first + 64) for first in range(0, len(paths), 64)]
        for problems in pool.imap(lambda part: list(map(check, paths[part])), parts):
            for problem in filter(None, problems):
                self._new.put(problem)
            if self._stopped:
                break


def check_file(path: str, completely: bool = False) -> Problem | None:
    """What is wrong with a file, as far as its header and its end tell. One that ends strangely is decoded; completely:
    any one."""
    try:
        if completely or not _has_its_end(path):
            read(path)
    except Exception as error:  # damaged files make PIL raise all kinds of them
        return Problem(path, str(error))
    return None


def _has_its_end(path: str) -> bool:
    with Image.open(path) as image:
        end = ENDS.get(image.format or "", b"")
    with open(path, "rb") as file:
        file.seek(-len(end), 2)
        return file.read() == end
