"""The notebooks, run from the first cell to the last as a reader runs them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent.parent / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SHORTER = {  # what takes the time, and what takes less: the numbers are other ones, every line is run
    "method": {"world(train=2048, val=200)": "world(train=128, val=40)", "epochs=3": "epochs=1"},
    "own_images": {" 240, size=64)": " 80, size=64)"},
    "timm_loop": {" 512), scenes(": " 64), scenes(", "range(6)": "range(2)"},
}


def code_cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs(path: Path, tmp_path: Path) -> None:
    """In this very Python, whatever kernels are installed, and with a history of its own."""
    text = path.read_text()
    for long, short in SHORTER.get(path.stem, {}).items():
        assert long in text
        text = text.replace(long, short)
    copy = tmp_path / path.name
    copy.write_text(text)
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
