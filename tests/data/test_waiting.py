"""What is looked at by several threads is what one of them finds; messages come now and then."""

import time
from multiprocessing.pool import ThreadPool

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelflow.data import waiting
from labelflow.data.waiting import map_threads, now_and_then


@given(st.lists(st.integers(), max_size=70), st.sampled_from([1, 3, 16]))
def test_as_map_with_no_more_threads_than_chunks(items: list[int], chunk: int) -> None:
    pools: list[int] = []

    def spy(threads: int) -> ThreadPool:
        pools.append(threads)
        return ThreadPool(threads)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waiting, "ThreadPool", spy)
        assert list(map_threads(str, items, chunk)) == list(map(str, items))
    chunks = len(range(0, len(items), chunk))
    assert pools == ([min(16, chunks)] if chunks > 1 else [])


def test_messages_come_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(time, "monotonic", lambda: now)
    now = 0.0
    tell = now_and_then(lines.append)
    for now in (0.0, 2.9, 3.1, 3.2, 6.0, 6.2, 20.0, 22.0):
        tell(str(now))
    assert lines == ["3.1", "6.2", "20.0"]
