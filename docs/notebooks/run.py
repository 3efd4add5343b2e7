"""Run the notebooks and keep what they show: python docs/notebooks/run.py, or with the names of some."""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

for path in map(Path, sys.argv[1:] or sorted(Path(__file__).parent.glob("*.ipynb"))):
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, coalesce_streams=True, record_timing=False, kernel_name="python3").execute()
    nbformat.write(notebook, path)
