"""The processes of cells."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

from labelflow.comparison.runner import _begin, _CellContext


def test_data_workers_of_a_cell_start_as_elsewhere() -> None:
    """A process passes on the way in which it was started; with forkserver, each worker would import torch anew. It
    prints any name, as the command line does."""
    with ProcessPoolExecutor(1, _CellContext(), _begin, (1,)) as pool:
        assert pool.submit(multiprocessing.get_start_method).result() == multiprocessing.get_start_method()
        assert pool.submit(print, "\u2192 \ud800", flush=True).result() is None
