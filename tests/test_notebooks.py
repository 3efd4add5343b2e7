"""The notebooks, run from the first cell to the last as a reader runs them."""

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parent.parent / "docs" / "notebooks").glob("*.ipynb"))


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[AsyncKernelManager]:
    """This very Python, whatever kernels are installed; with sockets and a history of its own."""
    with tempfile.TemporaryDirectory() as folder:  # with a short name: a socket's path has at most 107 characters
        spec = Path(folder) / "here" / "kernel.json"
        spec.parent.mkdir()
        launch = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        spec.write_text(json.dumps({"argv": launch, "display_name": "here", "language": "python"}))
        monkeypatch.setenv("IPYTHONDIR", folder)
        specs = KernelSpecManager(kernel_dirs=[folder])
        yield AsyncKernelManager(
            kernel_name="here", kernel_spec_manager=specs, transport="ipc", connection_file=f"{folder}/kernel-here.json"
        )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs(path: Path, kernel: AsyncKernelManager, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}  # what it writes stays there
    NotebookClient(notebook, km=kernel, timeout=300, resources=resources).execute()  # a cell that fails is an error
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert outputs
    assert "Warning" not in "".join(output.text for output in outputs if output.get("name") == "stderr")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_kept_as_they_ran(path: Path) -> None:
    """In one go, and small enough for a repository. `jupyter execute --inplace` does that."""
    cells = nbformat.read(path, as_version=4).cells
    counts = [cell.execution_count for cell in cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert path.stat().st_size < 300_000
