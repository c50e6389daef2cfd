"""Connections of clients: how long a request's head may take, how long an answer may lie unread, how many may be."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
"""How long a client may take for the head of a request, from its first byte on, or from when it connected."""

UNREAD_SECONDS = 60.0
"""How long a client may leave an answer unread that does not fit into the buffers on its way."""

SPARE = 256
"""Connections beside those whose requests are computed or wait: such as those that are kept for a next request."""

BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 2\r\n"
    b"Content-Type: text/plain; charset=utf-8\r\nContent-Length: 20\r\n\r\ntoo many connections"
)


class Connection(H11Protocol):
    """A connection that is closed where its client takes too long.

    uvicorn's own limits concern connections that are kept between two requests (``timeout_keep_alive``), and the number
    of requests (``limit_concurrency``); here the latter is a number of connections, of which the last one is answered
    with 503.  How long bodies may take is told by :mod:`.incoming`.
    """

    head_timer: asyncio.TimerHandle | None = None
    unread_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Takes a client, if there are not too many."""
        super().connection_made(transport)
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            transport.write(BUSY)
            transport.close()
        else:
            self._time_head()

    def data_received(self, data: bytes) -> None:
        """Takes a part of a request."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._time_head()
        else:
            self._stop_timers()

    def pause_writing(self) -> None:
        """The client reads more slowly than it is answered."""
        super().pause_writing()
        self.unread_timer = self.loop.call_later(UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has read."""
        super().resume_writing()
        if self.unread_timer is not None:
            self.unread_timer.cancel()
            self.unread_timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left."""
        self._stop_timers()
        super().connection_lost(exc)

    def _time_head(self) -> None:
        """Begins to wait for the head of a request; what comes of it makes the time no longer."""
        if self.head_timer is None and not self.transport.is_closing():
            self.head_timer = self.loop.call_later(HEAD_SECONDS, self.timeout_keep_alive_handler)

    def _stop_timers(self) -> None:
        for timer in (self.head_timer, self.unread_timer):
            if timer is not None:
                timer.cancel()
        self.head_timer = self.unread_timer = None
