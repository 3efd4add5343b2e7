"""Batches on their way to a device. No GPU was there: streams are played by others, which take down what is asked."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from labelflow.data import device, on_device

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


class Sent(NamedTuple):
    """A batch that only takes down that it was sent; its tensors stay where they are."""

    name: str
    parts: tuple[Tensor, list[dict[str, Tensor]]]
    log: list[str]

    def to(self, device: torch.device) -> "Sent":
        self.log.append(f"copy {self.name} to {device.type}")
        return self


def sent(name: str, log: list[str]) -> Sent:
    return Sent(name, (torch.zeros(1), [{"box": torch.zeros(2)}, {"box": torch.zeros(3)}]), log)


class Stream:
    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def wait_stream(self, other: "Stream") -> None:
        self.log.append(f"{self.name} waits for {other.name}")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What streams are asked to do."""
    log: list[str] = []
    computing, made = Stream("computing", log), []

    @contextmanager
    def on(stream: Stream) -> Iterator[None]:
        log.append(f"on {stream.name}:")
        yield
        log.append(f"off {stream.name}")

    def make(device: torch.device) -> Stream:
        made.append(device)
        assert made == [GPU]  # one for all batches, of training and evaluations
        return Stream("copying", log)

    monkeypatch.setattr(torch.cuda, "Stream", make)
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: computing)
    keep = lambda tensor, stream: log.append(f"keep {len(tensor)} for {stream.name}")  # noqa: E731
    monkeypatch.setattr(Tensor, "record_stream", keep)
    device._copying_stream.cache_clear()
    yield log
    device._copying_stream.cache_clear()


def test_batches_are_copied_on_a_stream_of_their_own(log: list[str]) -> None:
    """Computing waits for its batch, and its memory is kept until computing is done with it."""
    log.extend(f"compute with {batch.name}" for batch in on_device((sent(name, log) for name in "ab"), GPU))
    expected = []
    for name in "ab":
        expected += ["on copying:", f"copy {name} to cuda", "off copying", "computing waits for copying"]
        expected += ["keep 1 for computing", "keep 2 for computing", "keep 3 for computing", f"compute with {name}"]
    assert log == expected


@pytest.mark.parametrize("where", [CPU, GPU])
def test_no_batch_is_read_before_it_is_asked_for(where: torch.device, log: list[str]) -> None:
    """So that what batches report is not late, and an error comes after all batches before it."""

    def read() -> Iterator[Sent]:
        try:
            for name in "ab":
                log.append(f"read {name}")
                yield sent(name, log)
            raise ValueError("unreadable")
        finally:
            log.append("closed")

    batches = on_device(read(), where)
    assert [next(batches).name, next(batches).name] == ["a", "b"]
    assert [line for line in log if line[:4] in ("read", "copy")] == [
        *("read a", f"copy a to {where.type}", "read b", f"copy b to {where.type}")
    ]
    with pytest.raises(ValueError, match="unreadable"):
        next(batches)
    batches = on_device(read(), where)
    next(batches)
    log.clear()
    del batches  # an interrupted run drops them
    assert log == ["closed"]


def test_without_a_gpu_nothing_is_asked_of_streams(log: list[str]) -> None:
    assert [batch.name for batch in on_device((sent(name, log) for name in "abc"), CPU)] == ["a", "b", "c"]
    assert log == ["copy a to cpu", "copy b to cpu", "copy c to cpu"]
