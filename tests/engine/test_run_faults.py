"""Damage of each kind is either survived, with the same numbers, or refused with one line that names the file."""

import re
import subprocess
import sys
from pathlib import Path


def test_faults_are_survived_or_named(tmp_path: Path) -> None:
    command = [sys.executable, str(Path(__file__).parent / "faults.py"), str(tmp_path / "faults"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    tried, survived, refused = map(int, re.findall(r"(\d+) (?:faults|survived|refused)", done.stdout.splitlines()[-1]))
    assert tried >= 25
    assert min(survived, refused) >= 5
