"""Annotate from the command line again and again, killed and resumed, or by two processes: are the files the same?

    python tests/labels/disturbed.py FOLDER KILLS ARGUMENTS…

The arguments are those of `labelflow annotate`, without --out. The parent only imports and forks (torch's threads do
not survive a fork), so that a trial costs no start-up.
"""

import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from small_store import child, contents, mortal, status

import labelflow.tasks.annotation  # noqa: F401  (before the forks)
from labelflow.cli import main


def annotate(out: Path, arguments: list[str], before: Callable[[], None] = lambda: None) -> int:
    """A child that annotates as a user does."""

    def act() -> None:
        os.dup2(os.open(out.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
        torch.set_num_threads(1)
        before()
        code = main(["annotate", *arguments, "--out", str(out)])
        assert code == 0, f"exit code {code}"

    return child(act)


def one_of(rank: int, processes: int, port: int) -> Callable[[], None]:
    """As torchrun starts it."""
    said = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
    said |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    return lambda: os.environ.update({name: str(value) for name, value in said.items()})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_whole(folder: Path) -> bool:
    return (folder / "manifest.json").exists() and not (folder / "draft.json").exists()


def trials(folder: Path, kills: int, arguments: list[str]) -> None:
    begin = time.perf_counter()
    assert status(annotate(folder / "alone", arguments)) == 0
    seconds = time.perf_counter() - begin
    expected = contents(folder / "alone")

    port = free_port()
    both = [annotate(folder / "both", arguments, one_of(rank, 2, port)) for rank in range(2)]
    assert [status(number) for number in both] == [0, 0]
    print("two processes:", "identical" if contents(folder / "both") == expected else "different", flush=True)

    chance = random.Random(0)
    same = killed = 0
    for trial in range(kills):
        out = folder / f"trial{trial}"
        if trial % 2:
            number = annotate(out, arguments)
            time.sleep(chance.uniform(0.2, 0.95) * seconds)
            os.kill(number, signal.SIGKILL)
        else:
            step = 1 + chance.randrange(90)
            number = annotate(out, arguments, lambda step=step: mortal(step))
        ended = status(number)
        killed += os.WIFSIGNALED(ended) and os.WTERMSIG(ended) == signal.SIGKILL
        if not is_whole(out):
            assert status(annotate(out, [*arguments, "--resume", "--workers", str(int(trial % 3 == 2))])) == 0
        same += contents(out) == expected
        if contents(out) != expected:
            print(f"trial {trial} differs", flush=True)
    print(f"{killed} killed, {same} of {kills} identical")


if __name__ == "__main__":
    trials(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
