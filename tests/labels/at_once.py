"""Start two annotators on one store at once, again and again: does one go on, and is the other refused in one line?

    python tests/labels/at_once.py FOLDER ROUNDS ARGUMENTS…

The arguments are those of `labelflow annotate`, without --out. Every second round resumes a store of which half is
missing or damaged. The parent only imports and forks (torch's threads do not survive a fork), so that a start is cheap.
"""

import os
import re
import shutil
import sys
import time
from collections import Counter
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
LATE = re.compile(r"labelflow: \S+ is complete already; choose another folder, or remove it\n")


def start(out: Path, arguments: list[str], gate: int, log: Path) -> int:
    """A child that waits for the gate to close, and annotates as a user does; it keeps the store for a second."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        for stream, suffix in ((1, ".out"), (2, ".err")):
            os.dup2(os.open(log.with_suffix(suffix), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
        torch.set_num_threads(1)
        finish = Draft.finish
        Draft.finish = lambda draft: (time.sleep(1), finish(draft))[1]
        os.read(gate, 1)
        code = main(["annotate", *arguments, "--out", str(out)])
    finally:
        os._exit(code)


def both(out: Path, arguments: list[str]) -> list[tuple[int, str]]:
    """The exit codes of two, and what they say on stderr."""
    gate, opener = os.pipe()
    logs = [out.with_name(f"log{number}") for number in range(2)]
    children = [start(out, arguments, gate, log) for log in logs]
    os.write(opener, b"12")
    codes = [os.waitstatus_to_exitcode(status(child)) for child in children]
    os.close(gate), os.close(opener)
    return [(code, log.with_suffix(".err").read_text()) for code, log in zip(codes, logs, strict=True)]


def spoil(folder: Path) -> None:
    """A missing shard, a damaged one, and damaged keys."""
    shards = sorted((folder / "shards").iterdir())
    shards[0].unlink()
    flip(shards[1])
    flip(folder / "samples.txt")


def outcome(ended: list[tuple[int, str]], resumed: bool) -> str:
    (first, _), (second, said) = sorted(ended)
    if (first, second) == (0, 2) and REFUSED.fullmatch(said):
        return "refused"
    late = (second, said) == (0, "") if resumed else second == 2 and LATE.fullmatch(said)
    return "too late to meet" if first == 0 and late else f"wrong: {ended}"


def trials(folder: Path, rounds: int, arguments: list[str]) -> None:
    assert status(annotate_alone(folder / "alone", arguments)) == 0
    expected, seen, intact = contents(folder / "alone"), Counter[str](), 0
    for number in range(rounds):
        out, resumed = folder / "both", number % 2 == 1
        if resumed:
            shutil.copytree(folder / "alone", out)
            spoil(out)
        seen[outcome(both(out, [*arguments, *["--resume"] * resumed]), resumed)] += 1
        intact += contents(out) == expected and Store(out).verify() == [] and not (out / LOCK).exists()
        shutil.rmtree(out)
    told = ", ".join(f"{count} {what}" for what, count in seen.items())
    print(f"{rounds} rounds: one went on in each; the other: {told}; {intact} stores intact")


if __name__ == "__main__":
    trials(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
