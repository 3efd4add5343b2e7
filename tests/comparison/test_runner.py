"""The processes of cells."""

import multiprocessing
import runpy
import sys
from concurrent.futures import ProcessPoolExecutor

import pytest

from labelflow.comparison import runner
from labelflow.comparison.runner import _begin, _CellContext


def test_data_workers_of_a_cell_start_as_elsewhere() -> None:
    """A process passes on the way in which it was started; with forkserver, each worker would import torch anew. It
    prints any name, as the command line does."""
    with ProcessPoolExecutor(1, _CellContext(), _begin, (1,)) as pool:
        assert pool.submit(multiprocessing.get_start_method).result() == multiprocessing.get_start_method()
        assert pool.submit(print, "\u2192 \ud800", flush=True).result() is None


@pytest.mark.parametrize(("platform", "how"), [("linux", "forkserver"), ("darwin", "spawn")])
def test_only_linux_has_a_server_that_forks(platform: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With torch imported, it must not on macOS, though Python offers it there."""
    monkeypatch.setattr(sys, "platform", platform)
    assert runpy.run_path(runner.__file__)["HOW"] == how
