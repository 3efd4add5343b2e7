"""What several tests of robustness share."""

from pathlib import Path

import pytest

from robust.asking import write_asked


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models' weights, and images of three classes; tests leave it as it is."""
    root = tmp_path_factory.mktemp("asked")
    write_asked(root)
    return root
