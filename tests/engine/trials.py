"""A fault, a command, and what came of it: the same as without the fault, or one line that names the file.

Commands run in forked children of a parent that has imported everything (torch's threads do not survive a fork).
"""

import hashlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from labelflow.cli import main

Act = Callable[[], int | None]  # in the child; returns an exit code
FLIPS = 3
PATIENCE = 120  # seconds for a command


class Said(NamedTuple):
    code: int  # negative: the signal that killed it
    out: str
    err: str


class Outcome(NamedTuple):
    fault: str
    command: str
    kind: str  # survived, admitted (that there is less to tell), refused, skipped; or what is wrong:
    # SILENT, TRACEBACK, UNCLEAR (not one line with the file), CHANGED (by a refusal)
    said: str = ""

    @property
    def good(self) -> bool:
        return self.kind in ("survived", "admitted", "refused", "skipped")


@dataclass(frozen=True)
class Command:
    """What opens a folder, and what it comes to: numbers that must not change."""

    name: str
    act: Act
    told: Callable[[Said], Any]
    admits: str = "nothing"  # what it says if it has less to tell
    not_of: str = "nothing"  # files with this in their names are not opened, so that less is tried with them


def cli(*args: object) -> Act:
    return lambda: main([str(arg) for arg in args])


def start(act: Act, folder: Path, name: str = "said") -> int:
    """A child; what it prints goes to files in a folder."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    child = os.fork()
    if child:
        return child
    code: int | None = 1
    try:
        os.setpgid(0, 0)  # so that its own children end with it
        for descriptor, ending in ((1, "out"), (2, "err")):
            os.dup2(os.open(folder / f"{name}.{ending}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
        torch.set_num_threads(1)
        code = act() or 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        os._exit(code or 0)


def finish(child: int, folder: Path, name: str = "said", patience: float = PATIENCE) -> Said:
    """What became of it; one that takes too long is killed."""
    end = time.monotonic() + patience
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > end:
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
        time.sleep(0.003)
    code = os.waitstatus_to_exitcode(ended[1])
    return Said(code, *((folder / f"{name}.{ending}").read_text(errors="replace") for ending in ("out", "err")))


def run(act: Act, folder: Path) -> Said:
    return finish(start(act, folder), folder)


def succeed(act: Act, folder: Path) -> Said:
    """Of what has to be there before anything is damaged."""
    said = run(act, folder)
    assert said.code == 0, said
    return said


def tree(folder: Path) -> dict[str, str]:
    """Every file and folder below it."""
    return {str(path.relative_to(folder)): digest(path) if path.is_file() else "" for path in folder.rglob("*")}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def copy(source: Path, target: Path) -> None:
    """Hard links stay hard links: a run's weights are those of a checkpoint."""
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)


def judge(
    fault: str,
    command: str,
    said: Said,
    named: Sequence[Path | str],
    same: bool,
    before: dict[str, str],
    after: Any,
    admits: str = "nothing",
) -> Outcome:
    """named: the file that a refusal has to name (or one of several). same: whether the numbers are."""
    lines = said.err.strip().splitlines()
    last = lines[-1] if lines else ""
    if said.code == 0:
        if not same and admits in last:
            return Outcome(fault, command, "admitted", last)
        return Outcome(fault, command, "survived" if same else "SILENT", _first_naming(said.out, named))
    if said.code < 0 or said.code not in (2, 130) or "Traceback (most recent call last)" in said.err:
        return Outcome(fault, command, "TRACEBACK", f"exit code {said.code}: {last}")
    if len(lines) != 1 or not any(names(last, one) for one in named):
        return Outcome(fault, command, "UNCLEAR", f"{len(lines)} lines: {' / '.join(lines[-3:])}")
    if before != after:
        return Outcome(fault, command, "CHANGED", f"{_difference(before, after)}: {last}")
    return Outcome(fault, command, "refused", last)


def names(line: str, file: Path | str) -> bool:
    """`FOLDER/FILE`, or the folder and the file in it apart."""
    if isinstance(file, str):
        return file in line
    folders = list(file.parents)[:3]
    if not file.suffix:  # a folder that is missing or empty: what lacks it
        return str(file.parent) in line
    return any(str(folder) in line and str(file.relative_to(folder)) in line for folder in folders)


def _first_naming(out: str, named: Sequence[Path | str]) -> str:
    return next((line for line in out.splitlines() if any(names(line, one) for one in named)), "")


def _difference(before: dict[str, str], after: dict[str, str]) -> str:
    changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return f"changed {', '.join(sorted(changed)[:3])}"


Damage = Callable[[Path], None]


FEW = ("missing", "bit flipped, 0")


def damages(name: str, other: Path | None, older: Path | None) -> Iterator[tuple[str, Damage]]:
    """Of a file or folder called so; other, older: what it may be mistaken for."""
    if not Path(name).suffix:
        yield "missing", shutil.rmtree
        yield "empty", _emptied
    else:
        text = not name.endswith((".safetensors", ".pt", ".npy"))
        yield "missing", Path.unlink
        yield "empty", lambda path: _write(path, b"")
        yield "cut in half", lambda path: os.truncate(path, path.stat().st_size // 2)
        for number in range(FLIPS):
            yield f"bit flipped, {number}", lambda path, number=number: flip(path, number)
        if text:
            yield "digit changed", change_digit
            yield "not UTF-8", _not_utf8
            yield "5", lambda path: _write(path, b"5")
        yield "[]", lambda path: _write(path, b"[]")
    for what, source in (("another's", other), ("an older one's", older)):
        if source is not None:
            yield f"swapped with {what}", lambda path, source=source: copy(source, _gone(path))


def flip(path: Path, number: int) -> None:
    """A bit, in place: whatever is linked to the file has it, too."""
    chance = random.Random(f"{path.name} {number}")
    with open(path, "r+b") as file:
        place = chance.randrange(path.stat().st_size)
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1 << chance.randrange(8)]))


def change_digit(path: Path) -> None:
    """A number becomes another one: what remains can still be read."""
    content = bytearray(path.read_bytes())
    digits = [match.start() for match in re.finditer(rb"[0-9]", content)]
    content[random.Random(path.name).choice(digits)] ^= 1  # 4 becomes 5
    path.write_bytes(content)


def _not_utf8(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] = 0xFF
    _write(path, bytes(content))


def _write(path: Path, content: bytes) -> None:
    _gone(path).write_bytes(content)


def _gone(path: Path) -> Path:
    """Not in place: others may be linked to it."""
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    return path


def _emptied(path: Path) -> None:
    _gone(path).mkdir()
