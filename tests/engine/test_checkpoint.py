"""A run that was killed and resumed ends as one that was left alone, bit for bit."""

import re
import subprocess
import sys
from pathlib import Path

KILLS = {"classify": 12, "segment": 2, "detect": 2}  # half of them in the middle of a save


def test_killed_runs_end_alike(tmp_path: Path) -> None:
    asked = [str(part) for pair in KILLS.items() for part in pair]
    command = [sys.executable, str(Path(__file__).parent / "survive.py"), str(tmp_path), *asked]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    for task, kills in KILLS.items():
        assert f"{task} {kills} of {kills} ends identical" in done.stdout, done.stdout
    least = sum(KILLS.values()) * 2 // 3
    assert len(re.findall(": killed", done.stdout)) >= least, done.stdout  # the kills did come in time
