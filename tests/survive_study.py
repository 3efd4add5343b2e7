"""Kill a study's queue and run it again, again and again: are its cells those of one that was left alone?

python tests/survive_study.py FOLDER 10
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PLAN = """
[experiments.world]
recipe = "quickstart_cutmix"
methods = ["cutmix", "tl_align", "vanilla"]
seeds = 4
measures = ["fluctuation"]
[experiments.world.settings]
source = "world(train=1024, val=200)"
epochs = 6
eval_epochs = 6
batch = 64
workers = 0
save_updates = 20
"""


def start(folder: Path) -> "subprocess.Popen[bytes]":
    """In a group of its own, so that its workers are killed with it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.toml").write_text(PLAN)
    command = [sys.executable, "-m", "labelflow", "study", "run", str(folder), "--jobs", "2"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def numbers(folder: Path) -> dict[str, Any]:
    return {path.name: json.loads(path.read_text())["metrics"] for path in sorted((folder / "cells").glob("*.json"))}


def written(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (folder / "cells").glob("*.json")}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("kills", type=int)
    folder, kills = (arguments := parser.parse_args()).folder, arguments.kills
    assert not folder.exists(), f"{folder} is there already: nothing would be run in it"
    began = time.monotonic()
    assert start(folder / "alone").wait() == 0
    whole = time.monotonic() - began

    chance, killed = random.Random(0), 0
    finished: dict[str, int] = {}
    while True:
        queue = start(folder / "killed")
        # Half of the time that is left, shared among the kills that are left, on the average.
        left = whole * (1 - len(finished) / 12) / max(1, kills - killed)
        try:
            code = queue.wait(8 + chance.uniform(0, left) if killed < kills else None)
        except subprocess.TimeoutExpired:
            os.killpg(queue.pid, signal.SIGKILL)
            queue.wait()
            killed += 1
        else:
            assert code == 0, f"the queue ended with {code}"
            break
        before, finished = finished, written(folder / "killed")
        assert before.items() <= finished.items(), "a finished cell was lost, or written again"
        print(f"killed {killed} times, {len(finished)} of 12 cells finished", flush=True)
    finished_at_end = written(folder / "killed")
    assert finished.items() <= finished_at_end.items(), "a finished cell was written again"
    assert numbers(folder / "killed") == numbers(folder / "alone"), "a cell has other numbers"
    for path in (folder / "killed" / "runs").glob("*/metrics.jsonl"):
        updates = [line["update"] for line in map(json.loads, path.read_text().splitlines()) if line["kind"] == "train"]
        assert updates == sorted(set(updates)), f"{path} has updates twice"
    print(f"{killed} kills: {len(finished_at_end)} cells, the same numbers, none lost, none run twice")


if __name__ == "__main__":
    main()
