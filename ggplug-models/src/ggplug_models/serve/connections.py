"""Connections of clients, with timeouts for request headers and for reading responses, and a limit of their number."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
"""Timeout for the headers of a request, from its first byte, or from the start of the connection."""

UNREAD_SECONDS = 60.0
"""Timeout for reading a response that does not fit into the network buffers."""

SPARE = 256
"""Number of connections in addition to those with a request, such as idle keep-alive connections."""

BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 2\r\n"
    b"Content-Type: text/plain; charset=utf-8\r\nContent-Length: 20\r\n\r\ntoo many connections"
)


OTHER_FILES = 24
"""Open files in addition to connections and to those that are open when the server starts."""

SILENCE = 10.0
"""Seconds after a warning of too few open files in which it is not repeated."""

log = logging.getLogger(__name__)


def allowed(wanted: int) -> int:
    """How many connections there may be: ``wanted``, or fewer if the process may not have so many files open.

    Raises the process's limit as far as the system allows.
    """
    try:
        import resource

        opened = len(os.listdir("/dev/fd")) + OTHER_FILES
        limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    except (ImportError, OSError):  # on systems without such limits
        return wanted
    if limit not in (resource.RLIM_INFINITY, -1) and limit < opened + wanted:
        with contextlib.suppress(OSError, ValueError):
            larger = opened + wanted if most == resource.RLIM_INFINITY else min(opened + wanted, most)
            resource.setrlimit(resource.RLIMIT_NOFILE, (larger, most))
            limit = larger
        return max(1, min(wanted, limit - opened))
    return wanted


class Complaints:
    """Handles errors of an event loop: one line, now and then, where it may open no more connections."""

    def __init__(self) -> None:
        self._silent_until = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if context.get("message") != "socket.accept() out of system resource":
            loop.default_exception_handler(context)
        elif loop.time() >= self._silent_until:
            self._silent_until = loop.time() + SILENCE
            log.warning("the process has too many open files: new connections wait (see: ulimit -n)")


class Connection(H11Protocol):
    """A connection that is closed if its client is too slow.

    uvicorn has timeouts only for idle connections (``timeout_keep_alive``), and limits the number of requests
    (``limit_concurrency``).  Here that limit is a number of connections: one more gets the status 503.  The timeouts of
    request bodies are in :mod:`.http.incoming`.
    """

    head_timer: asyncio.TimerHandle | None = None
    unread_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accepts a client, unless there are too many connections."""
        super().connection_made(transport)
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            transport.write(BUSY)
            transport.close()
        else:
            self._time_head()

    def data_received(self, data: bytes) -> None:
        """Receives a part of a request, and starts or stops the timeout of the headers."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._time_head()
        else:
            self._stop_timers()

    def pause_writing(self) -> None:
        """Starts the timeout for reading: the client reads more slowly than the server writes."""
        super().pause_writing()
        self.unread_timer = self.loop.call_later(UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Stops the timeout for reading: the client has read."""
        super().resume_writing()
        if self.unread_timer is not None:
            self.unread_timer.cancel()
            self.unread_timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the timeouts: the connection has ended."""
        self._stop_timers()
        super().connection_lost(exc)

    def _time_head(self) -> None:
        """Starts the timeout for the headers of a request; received bytes do not extend it."""
        if self.head_timer is None and not self.transport.is_closing():
            self.head_timer = self.loop.call_later(HEAD_SECONDS, self.timeout_keep_alive_handler)

    def _stop_timers(self) -> None:
        for timer in (self.head_timer, self.unread_timer):
            if timer is not None:
                timer.cancel()
        self.head_timer = self.unread_timer = None
