"""The process of the server: a socket, an event loop, and an end in good order."""

from __future__ import annotations

import asyncio
import socket
from types import FrameType

import uvicorn

from ggplug.errors import GGPlugError
from ggplug_models.serve import connections
from ggplug_models.serve.app import Rules, application
from ggplug_models.serve.connections import Connection
from ggplug_models.serve.service import Service

PATIENCE = 10.0
"""Seconds that answers may go on for when the server is to end."""


class ListenError(GGPlugError, OSError):
    """There is no listening at an address; ``got``: host and port."""


class Server(uvicorn.Server):
    """Serves until it is told to end, by a signal or by :meth:`stop`.

    Then it takes no more requests, which get 503, and ends when the answers that are under way have ended: after
    ``patience`` seconds, or at a second signal, they are cut off, and their clients are told.
    """

    def __init__(
        self, service: Service, rules: Rules | None = None, *, patience: float = PATIENCE, log_requests: bool = False
    ) -> None:
        config = uvicorn.Config(
            application(service, rules),
            access_log=log_requests,
            log_level="info" if log_requests else "warning",
            ws="none",
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=2,
            http=Connection,
            limit_concurrency=service.most_inside + connections.SPARE + 1,
        )
        super().__init__(config)
        self.service = service
        self._patience = patience

    def stop(self) -> None:
        """Ends the server; any thread may ask for it."""
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal ends the server, the second one at once.  It is no failure of the process."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends it in good order: first the answers, then the connections."""
        await self.service.drain(self._patience, lambda: self.force_exit)
        await super().shutdown(sockets)


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections; port 0: any that is free.  Raises ListenError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=512)
    except (OSError, UnicodeError) as error:  # the latter of names that cannot be one of a host
        reason = str(getattr(error, "strerror", None) or error).partition(" (while attempting")[0]
        raise ListenError(
            f"cannot listen at {host}, port {port}: {reason}",
            got=(host, port),
            remedy="--host names an address of this machine, --port a port that is free; 0: any",
        ) from None


def run(server: Server, listening: socket.socket) -> None:
    """Serves in this thread, until the end."""
    asyncio.run(server.serve(sockets=[listening]))
