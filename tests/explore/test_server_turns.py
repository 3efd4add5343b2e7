"""Many at once: who waits, who is refused, and what is not computed or read for those who are gone or slow."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest

pytest.importorskip("starlette")
import uvicorn

from labelflow.commands.explore import listen
from labelflow.data import Preprocessing
from labelflow.data.world import World
from labelflow.explore import Shelf, make_app, server, uploads

PICTURES = [World("val", 2, size=32).load(index)[0] for index in range(2)]
QUESTION = {"model": 0, "own": "example-0", "partner": "example-1", "box": [0, 0, 0.5, 0.5]}


class NoModel:
    """Nothing is asked of it here."""

    name, trained, preprocessing = "none", True, Preprocessing(32)


def make() -> Any:
    return make_app([NoModel()], Shelf([("one", PICTURES[0]), ("two", PICTURES[1])]))  # type: ignore[arg-type]


class Client:
    """One request, message by message, without a network."""

    def __init__(self, app: Any, path: str, headers: dict[str, str] | None = None) -> None:
        self.app, self.status, self.told, self.reads = app, 0, b"", 0
        said = {"host": "localhost", **(headers or {})}
        pairs = [(name.encode(), value.encode()) for name, value in said.items()]
        self.scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": pairs}
        self.messages, self.incoming = anyio.create_memory_object_stream[dict[str, Any]](100)

    def send(self, body: bytes, more: bool = False) -> "Client":
        self.messages.send_nowait({"type": "http.request", "body": body, "more_body": more})
        return self

    def leave(self) -> None:
        self.messages.send_nowait({"type": "http.disconnect"})

    async def run(self) -> None:
        with self.messages, self.incoming:
            await self.app(self.scope, self._receive, self._answered)

    async def _receive(self) -> dict[str, Any]:
        try:
            message = self.incoming.receive_nowait()  # as uvicorn does, no pause where something is there
        except anyio.WouldBlock:
            message = await self.incoming.receive()
        self.reads += 1
        return message

    async def _answered(self, message: dict[str, Any]) -> None:
        self.status = message.get("status", self.status)
        self.told += message.get("body", b"")

    @property
    def error(self) -> str:
        return str(json.loads(self.told)["error"])


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[float], threading.Event]]:
    """Answers that wait for an event, and the right edges of the boxes that they were asked about."""
    asked: list[float] = []
    go_on = threading.Event()

    def answer(subject: object, own: object, partner: object, box: Any) -> dict[str, Any]:
        asked.append(box.right)
        go_on.wait(20)
        return {"right": box.right}

    monkeypatch.setattr(server, "answer", answer)
    yield asked, go_on
    go_on.set()


def ask(app: Any, right: float) -> Client:
    return Client(app, "/answer").send(json.dumps(QUESTION | {"box": [0, 0, right, 0.5]}).encode())


async def until(true: Callable[[], bool]) -> None:
    with anyio.fail_after(20):
        while not true():
            await anyio.sleep(0.005)


def test_nothing_is_computed_for_those_who_left_while_they_waited(slow: Any) -> None:
    asked, go_on = slow

    async def play() -> list[Client]:
        app = make()
        clients = [ask(app, right) for right in (0.1, 0.2, 0.3)]
        async with anyio.create_task_group() as group:
            for client in clients:
                group.start_soon(client.run)
            await until(lambda: asked == [0.1] and all(client.reads for client in clients))
            clients[1].leave()
            go_on.set()
        return clients

    first, gone, last = anyio.run(play)
    assert asked == [0.1, 0.3]
    assert [json.loads(one.told) for one in (first, last)] == [{"right": 0.1}, {"right": 0.3}]
    assert gone.status == 400


def test_beyond_a_few_that_wait_questions_are_refused_in_words(slow: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, go_on = slow
    monkeypatch.setattr(server, "MAX_WAITING", 2)

    async def play() -> list[Client]:
        app = make()
        clients = [ask(app, right) for right in (0.1, 0.2, 0.3, 0.4)]
        async with anyio.create_task_group() as group:
            for client in clients:
                group.start_soon(client.run)
            await until(lambda: clients[3].status > 0)
            assert [client.status for client in clients] == [0, 0, 0, 503]
            go_on.set()
        late = ask(app, 0.5)
        await late.run()
        return [*clients, late]

    clients = anyio.run(play)
    assert [client.status for client in clients] == [200, 200, 200, 503, 200]
    assert clients[3].error == "the server is busy; try again in a moment"
    assert asked == [0.1, 0.2, 0.3, 0.5]


def test_only_a_few_uploads_are_read_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PARALLEL_UPLOADS", 2)
    monkeypatch.setattr(server, "MAX_WAITING", 1)

    async def play() -> list[Client]:
        app = make()
        clients = [Client(app, "/images").send(b"half", more=True) for _ in range(4)]
        async with anyio.create_task_group() as group:
            for client in clients:
                group.start_soon(client.run)
            await until(lambda: clients[3].status > 0)
            assert [client.reads for client in clients] == [1, 1, 0, 0]
            for client in clients[:3]:
                client.send(b" of it")
        return clients

    clients = anyio.run(play)
    assert [client.status for client in clients] == [400, 400, 400, 503]
    assert "not a JPEG, PNG, WebP or BMP" in clients[2].error


@pytest.mark.parametrize("path", ["/images", "/answer"])
def test_what_says_that_it_is_long_is_refused_unread(path: str) -> None:
    client = Client(make(), path, {"content-length": str(uploads.BYTES + 1)}).send(b"?", more=True)
    anyio.run(client.run)
    assert (client.status, client.reads) == (413, 0)


def test_half_sent_uploads_end_and_their_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.2)
    listening = listen("127.0.0.1", 0)
    place = listening.getsockname()
    settings = uvicorn.Config(make(), log_config=None, lifespan="off", ws="none", timeout_graceful_shutdown=1)
    serving = uvicorn.Server(settings)
    thread = threading.Thread(target=serving.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        with socket.create_connection(place, timeout=20) as client:
            client.sendall(b"POST /images HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000\r\n\r\nhalf")
            told = b"".join(iter(lambda: client.recv(4096), b""))  # until it is closed
    finally:
        serving.should_exit = True
        thread.join()
    assert told.startswith(b"HTTP/1.1 408 ")
    assert b"did not arrive within 0.2 seconds" in told
    assert b"x-content-type-options: nosniff" in told
