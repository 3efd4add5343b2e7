"""Start two annotators on one store at once, again and again: does one go on, and is the other refused in one line?

    python tests/labels/at_once.py FOLDER ROUNDS ARGUMENTS…

The arguments are those of `labelflow annotate`, without --out. Every second round resumes a store of which half is
missing or damaged. The parent only imports and forks (torch's threads do not survive a fork), so that a start is cheap.
"""

import os
import re
import select
import shutil
import sys
from pathlib import Path

import torch
from disturbed import annotate as annotate_alone
from small_store import contents, flip, status

import labelflow.tasks.annotation  # noqa: F401  (before the forks)
from labelflow.cli import main
from labelflow.engine.lock import LOCK
from labelflow.labels import Draft, Store

REFUSED = re.compile(
    r"labelflow: \S+ is in use by process \d+ on \S+ since [^(]+\(.*\); wait until it is free, or choose another\n"
)
PATIENCE = 60  # seconds, if both go on


def start(out: Path, arguments: list[str], gate: int, log: Path, other: tuple[int, int]) -> int:
    """A child that waits for the gate to open, annotates as a user does, and does not finish before the other one ends,
    which closes its pipe."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.close(other[1])  # which only the other one holds
        for stream, suffix in ((1, ".out"), (2, ".err")):
            os.dup2(os.open(log.with_suffix(suffix), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
        torch.set_num_threads(1)
        finish = Draft.finish
        Draft.finish = lambda draft: (select.select([other[0]], [], [], PATIENCE), finish(draft))[1]
        os.read(gate, 1)
        code = main(["annotate", *arguments, "--out", str(out)])
    finally:
        os._exit(code)


def both(out: Path, arguments: list[str]) -> list[tuple[int, str]]:
    """The exit codes of two, and what they say on stderr."""
    gate, one, other = os.pipe(), os.pipe(), os.pipe()
    logs = [out.with_name(f"log{number}") for number in range(2)]
    children = [start(out, arguments, gate[0], log, pipe) for log, pipe in zip(logs, (other, one), strict=True)]
    os.close(one[1]), os.close(other[1])
    os.write(gate[1], b"12")
    codes = [os.waitstatus_to_exitcode(status(child)) for child in children]
    for end in (*gate, one[0], other[0]):
        os.close(end)
    return [(code, log.with_suffix(".err").read_text()) for code, log in zip(codes, logs, strict=True)]


def spoil(folder: Path) -> None:
    """A missing shard, a damaged one, and damaged keys."""
    shards = sorted((folder / "shards").iterdir())
    shards[0].unlink()
    flip(shards[1])
    flip(folder / "samples.txt")


def trials(folder: Path, rounds: int, arguments: list[str]) -> None:
    assert status(annotate_alone(folder / "alone", arguments)) == 0
    expected, refused, intact = contents(folder / "alone"), 0, 0
    for number in range(rounds):
        out, resumed = folder / "both", number % 2 == 1
        if resumed:
            shutil.copytree(folder / "alone", out)
            spoil(out)
        (code, said), (other, refusal) = sorted(both(out, [*arguments, *["--resume"] * resumed]))
        if (code, said, other) == (0, "", 2) and REFUSED.fullmatch(refusal):
            refused += 1
        else:
            print(f"round {number}: {code} {said!r}, {other} {refusal!r}", flush=True)
        intact += contents(out) == expected and Store(out).verify() == [] and not (out / LOCK).exists()
        shutil.rmtree(out)
    print(f"{rounds} rounds: {refused} times one went on and one was refused; {intact} stores intact")


if __name__ == "__main__":
    trials(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
