"""Run the notebooks and keep what they show: python docs/notebooks/run.py, or with the paths of some.

What they write, such as runs, goes to a folder that is deleted.
"""

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

for path in map(Path, sys.argv[1:] or sorted(Path(__file__).parent.glob("*.ipynb"))):
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as sockets:
        # Sockets instead of ports, which another process might take.
        kernel = Config(KernelManager={"transport": "ipc", "connection_file": f"{sockets}/kernel.json"})
        options = {"coalesce_streams": True, "record_timing": False, "config": kernel}
        NotebookClient(notebook, resources={"metadata": {"path": folder}}, **options).execute()
    nbformat.write(notebook, path)
