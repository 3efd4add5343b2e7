"""What several tests of benchmarks share."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def _own_threads() -> Iterator[None]:
    """A benchmark takes one; other tests get theirs back."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
