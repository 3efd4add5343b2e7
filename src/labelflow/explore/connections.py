"""Connections that keep the server waiting: for how long they may, and how many at a time.

uvicorn limits connections of all kinds together, so that silent ones would keep out those who speak.
"""

import asyncio
from itertools import count

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10  # in which the head of a request has to have arrived, after connecting or after the last answer
LEAST_SECONDS = 0.1  # that everyone has, however many there are
MOST = {
    "silent": 64,  # the head of the next request has not arrived
    "slow": 32,  # a request is half sent, or answers are not read
    "served": 128,  # a request is being answered
}


class Connection(H11Protocol):
    """uvicorn's; but where too many are silent or slow, the one that has been so for longest makes room."""

    turns = count()
    state, turn = "", 0
    deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_clock()

    def handle_events(self) -> None:
        busy = len(self._all("served")) >= MOST["served"]
        self.limit_concurrency = 0 if busy else None  # with 0, uvicorn refuses what comes
        super().handle_events()
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def _look(self) -> None:
        """What is waited for now; where that is new, the clock starts."""
        state = self._state()
        if state == self.state:
            return
        self.state, self.turn = state, next(self.turns)
        self._stop_clock()
        if state == "silent":  # bodies have their time in server.py
            self.deadline = self.loop.call_later(HEAD_SECONDS, self.transport.close)
        if state != "served":
            self.loop.call_later(LEAST_SECONDS, self._make_room, state, self.turn)

    def _state(self) -> str:
        if self.cycle is None or self.cycle.response_complete:
            return "silent"
        return "slow" if self.cycle.more_body or self.flow.write_paused else "served"

    def _make_room(self, state: str, turn: int) -> None:
        """Close the first of those in this state up to this turn, if there are too many."""
        waiting = [one for one in self._all(state) if one.turn <= turn]
        if len(waiting) > MOST[state]:
            first = min(waiting, key=lambda one: one.turn)
            self.connections.discard(first)  # at once, so that it makes room for one only
            first.transport.abort()  # close() would wait for those who do not read

    def _all(self, state: str) -> "list[Connection]":
        return [one for one in self.connections if isinstance(one, Connection) and one.state == state]

    def _stop_clock(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
