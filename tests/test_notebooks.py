"""The notebooks, run from the first cell to the last as a reader runs them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent.parent / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def code_cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs(path: Path, tmp_path: Path) -> None:
    """In this very Python, whatever kernels are installed, and with a history of its own."""
    copy = Path(shutil.copy(path, tmp_path))
    kernel = tmp_path / "kernels" / "python3" / "kernel.json"
    kernel.parent.mkdir(parents=True)
    launch = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel.write_text(json.dumps({"argv": launch, "display_name": "this Python", "language": "python"}))
    environment = {**os.environ, "JUPYTER_PATH": str(tmp_path), "IPYTHONDIR": str(tmp_path)}
    command = [sys.executable, str(FOLDER / "run.py"), str(copy)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr  # what a cell raised
    outputs = [output for cell in code_cells(copy) for output in cell["outputs"]]
    assert outputs
    assert "Warning" not in "".join("".join(output["text"]) for output in outputs if output.get("name") == "stderr")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_kept_as_they_ran(path: Path) -> None:
    """In one go, and small enough for a repository: docs/notebooks/run.py."""
    counts = [cell["execution_count"] for cell in code_cells(path)]
    assert counts == list(range(1, len(counts) + 1))
    assert path.stat().st_size < 300_000
