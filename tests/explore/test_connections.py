"""Those who keep the server waiting do not keep others out: the real server, and real sockets."""

import contextlib
import http.client
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("uvicorn")
import uvicorn
from starlette.responses import Response
from uvicorn.server import ServerState

from labelflow.commands.explore import listen
from labelflow.explore import connections
from labelflow.explore.connections import LEAST_SECONDS, MOST, Connection

TINY = "vit_tiny_patch16_224(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2, num_classes=5)=random"
HEAD = b" HTTP/1.1\r\nHost: localhost\r\n"
HALF = {
    "silent": b"",
    "half a head": b"GET /" + HEAD + b"X-Slow: ",
    "half an upload": b"POST /images" + HEAD + b"Content-Length: 9000\r\n\r\nhalf",
    "half a question": b"POST /answer" + HEAD + b"Content-Length: 200\r\n\r\n{",
    "half a body nobody asked for": b"GET /page.css" + HEAD + b"Content-Length: 9000\r\n\r\nhalf",
    "kept alive": b"GET /page.css" + HEAD + b"\r\n",
}
QUESTION = {"model": 0, "own": "example-0", "partner": "example-1", "box": [0, 0, 0.5, 0.5]}
LARGE = 2**20  # bytes, more than fit on the way
Place = tuple[str, int]


@pytest.fixture(scope="module")
def explore() -> Iterator[Place]:
    command = [sys.executable, "-m", "labelflow", "explore", TINY, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            port = re.search(r"127\.0\.0\.1:(\d+)", process.stdout.readline())
            assert port, process.communicate()
            yield "127.0.0.1", int(port[1])
        finally:
            process.terminate()


def visit(place: Place) -> None:
    """One who reads the page and asks something."""
    for path, question in (("/", None), ("/setup", None), ("/answer", json.dumps(QUESTION))):
        with contextlib.closing(http.client.HTTPConnection(*place, timeout=60)) as visitor:
            visitor.request("POST" if question else "GET", path, question)
            response = visitor.getresponse()
            assert (response.status, len(response.read()) > 50) == (200, True)


def connect(place: Place, count: int, sent: bytes, room: contextlib.ExitStack) -> list[socket.socket]:
    found = [room.enter_context(socket.create_connection(place, timeout=60)) for _ in range(count)]
    for one in found:
        dribble(one, sent)
    for one in found if sent.startswith(b"GET /page.css") else ():
        closed(one)  # or answered
    return found


def dribble(one: socket.socket, sent: bytes) -> None:
    with contextlib.suppress(ConnectionError):  # it has made room
        one.sendall(sent)


def closed(one: socket.socket) -> bool:
    """Whether it ends before anything comes."""
    try:
        return one.recv(1) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("count", [80, 2 * sum(MOST.values())])
@pytest.mark.parametrize("sent", HALF.values(), ids=HALF)
def test_the_next_visitor_is_served(explore: Place, sent: bytes, count: int) -> None:
    with contextlib.ExitStack() as room:
        waiting = connect(explore, count, sent, room)
        visit(explore)
        for one in waiting:
            dribble(one, b"x")
        visit(explore)


def test_the_next_visitor_is_served_among_all_of_them(explore: Place) -> None:
    with contextlib.ExitStack() as room:
        for sent in HALF.values():
            connect(explore, 80, sent, room)
        visit(explore)


GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n1"  # and one more
ENDLESS = b"GET /endless HTTP/1.1\r\nHost: a\r\n\r\n"
OK, BUSY = b"HTTP/1.1 200", b"HTTP/1.1 503"


@contextlib.contextmanager
def serving(monkeypatch: pytest.MonkeyPatch, seconds: float = 60, **most: int) -> Iterator[Place]:
    """A server of large answers that has less patience."""
    monkeypatch.setattr(connections, "HEAD_SECONDS", seconds)
    monkeypatch.setattr(connections, "MOST", {**dict.fromkeys(MOST, 1000), **most})
    listening = listen("127.0.0.1", 0)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**16)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while scope["method"] == "POST" and (await receive())["more_body"]:
            pass
        while scope["path"] == "/endless" and (await receive())["type"] != "http.disconnect":
            pass
        await Response(bytes(LARGE))(scope, receive, send)

    settings = uvicorn.Config(
        app, log_config=None, lifespan="off", ws="none", http=Connection, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield listening.getsockname()
    finally:
        server.should_exit = True
        thread.join()


@pytest.mark.parametrize(
    ("sent", "answer"),
    [(b"", b""), (b"GET / HTTP/1.1\r\nX-Slow: ", b""), (b"HEAD /" + HEAD + b"Content-Length: 9000\r\n\r\n", OK)],
    ids=["silent", "half a head", "a body that nobody asked for"],
)
@pytest.mark.parametrize("more", [b"", b"x"], ids=["quiet", "dribbling"])
def test_a_head_has_to_arrive_in_time(monkeypatch: pytest.MonkeyPatch, sent: bytes, answer: bytes, more: bytes) -> None:
    with serving(monkeypatch, seconds=0.3) as place, contextlib.ExitStack() as room:
        (one,) = connect(place, 1, sent, room)
        assert not answer or one.recv(4096).startswith(answer)
        one.settimeout(0.02)
        for _ in range(200):  # for much longer than it may
            dribble(one, more)
            if ended(one):
                return
        raise AssertionError("it may wait for ever")


def ended(one: socket.socket) -> bool:
    """Whether it is closed, after whatever came."""
    try:
        while one.recv(2**16):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


def test_of_the_silent_the_first_makes_room_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(monkeypatch, silent=3) as place, contextlib.ExitStack() as room:
        (slow,) = connect(place, 1, POST, room)
        first, *others = connect(place, 4, GET[:9], room)
        assert ended(first)
        dribble(slow, b"2")
        for one in others:
            dribble(one, GET[9:])
        assert [one.recv(len(OK)) for one in (slow, *others)] == [OK] * 4


def test_of_those_with_half_a_request_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(monkeypatch, slow=2) as place, contextlib.ExitStack() as room:
        first, *others = connect(place, 3, POST, room)
        assert ended(first)
        for one in others:
            dribble(one, b"2")
        assert [one.recv(len(OK)) for one in others] == [OK] * 2


def knock(one: socket.socket) -> None:
    for _ in range(200):
        one.sendall(b"x")
        time.sleep(0.02)


def test_of_those_who_do_not_read_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(monkeypatch, slow=2) as place, contextlib.ExitStack() as room:
        first, *others = connect(place, 3, 2 * GET, room)  # the second answer waits until the first is read
        with pytest.raises(ConnectionError):
            knock(first)
        for one in others:
            one.settimeout(0.2)
            assert not ended(one)


def test_those_who_are_served_are_not_closed_and_others_are_told_that_it_is_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving(monkeypatch, served=2, silent=1) as place, contextlib.ExitStack() as room:
        first, second = connect(place, 2, ENDLESS, room)
        (third,) = connect(place, 1, GET, room)
        assert third.recv(len(BUSY)) == BUSY
        second.settimeout(0.2)
        assert not ended(second)
        first.close()
        for _ in range(100):  # until the server has noticed
            (third,) = connect(place, 1, GET, room)
            if third.recv(len(OK)) == OK:
                return
        raise AssertionError("it is busy for ever")


class Clock:
    """A loop that only does what is due."""

    def __init__(self) -> None:
        self.now, self.due = 0.0, list[Any]()

    def call_later(self, seconds: float, call: Any, *arguments: Any) -> Any:
        due = SimpleNamespace(when=self.now + seconds, call=partial(call, *arguments))
        due.cancel = lambda: setattr(self, "due", [one for one in self.due if one is not due])
        self.due.append(due)
        return due

    def create_task(self, work: Any) -> Any:
        work.close()
        return Mock()

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for due in [one for one in self.due if one.when <= self.now]:
            self.due.remove(due)
            due.call()


def test_everyone_has_a_moment_however_many_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST", {**MOST, "silent": 2})
    settings, state, clock = uvicorn.Config(Mock(), log_config=None), ServerState(), Clock()

    def come() -> Connection:
        one = Connection(settings, state, {}, clock)  # type: ignore[arg-type]
        one.connection_made(Mock(get_extra_info=Mock(return_value=None)))
        return one

    def closed(some: list[Connection]) -> list[bool]:
        return [one.transport.abort.called for one in some]  # type: ignore[attr-defined]

    early = [come() for _ in range(5)]
    clock.sleep(0.6 * LEAST_SECONDS)
    early[0].data_received(GET)
    late = [come() for _ in range(5)]
    assert not any(closed(early + late))
    clock.sleep(0.6 * LEAST_SECONDS)
    assert closed(early + late) == [False, True, True, False, False, *[False] * 5]
    clock.sleep(0.6 * LEAST_SECONDS)
    assert closed(early + late) == [False, True, True, True, True, True, True, True, False, False]
    for one in early + late:
        one.connection_lost(None)
    assert not clock.due  # nothing is left of them


def test_what_is_said_in_time_may_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(monkeypatch, seconds=0.2) as place, contextlib.ExitStack() as room:
        (one,) = connect(place, 1, POST, room)
        time.sleep(0.5)
        dribble(one, b"2")
        assert one.recv(len(OK)) == OK
