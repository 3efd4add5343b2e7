"""A run that was killed and resumed ends as one that was left alone, bit for bit."""

import re
import subprocess
import sys
from pathlib import Path

KILLS = 12  # half of them in the middle of a save


def test_killed_runs_end_alike(tmp_path: Path) -> None:
    command = [sys.executable, str(Path(__file__).parent / "survive.py"), str(tmp_path / "runs"), str(KILLS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{KILLS} of {KILLS} ends identical" in done.stdout, done.stdout
    assert len(re.findall(": killed", done.stdout)) >= KILLS * 2 // 3, done.stdout  # the kills did come in time
