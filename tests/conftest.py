"""Settings for every test: offline, seeded, the same examples each time, a cache of their own."""

import gc
import os
from collections.abc import Iterator

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test reaches for the network
os.environ.setdefault("TRITON_INTERPRET", "1")  # our kernels run without a GPU


import hypothesis
import pytest

hypothesis.settings.register_profile("labelflow", deadline=None, max_examples=40, derandomize=True)
hypothesis.settings.load_profile("labelflow")


def pytest_collection_finish() -> None:
    """What has been imported and collected stays: collecting garbage need not look at it again and again."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # otherwise Triton reports leaks


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is remembered about data is remembered elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABELFLOW_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        yield


@pytest.fixture
def _no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that does not know its user: nothing can be cached."""
    pwd = pytest.importorskip("pwd")

    def unknown(user: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {user}")

    for name in ("LABELFLOW_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)


@pytest.fixture
def _no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs whose pages leave out the papers' figures, which take longer than a tiny run."""
    monkeypatch.setattr("labelflow.report.classifier.FIGURES_SHOWN", {})


@pytest.fixture(autouse=True)
def _seed() -> None:
    import torch  # not above: with xdist, the process that only hands out tests has no use for it

    torch.manual_seed(0)
