"""What several tests of robustness share."""

from pathlib import Path

import pytest

from robustness.small import write_vits


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models' weights, and images of three classes; tests don't change it."""
    root = tmp_path_factory.mktemp("vits")
    write_vits(root)
    return root
