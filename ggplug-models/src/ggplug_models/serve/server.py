"""The server process: a socket, an event loop, and an orderly shutdown."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType

import uvicorn

from ggplug.errors import GGPlugError
from ggplug_models.serve import connections
from ggplug_models.serve.app import Rules, application
from ggplug_models.serve.connections import Connection
from ggplug_models.serve.http.replicas import Replicas
from ggplug_models.serve.models import Models
from ggplug_models.serve.service import TICK, Service

PATIENCE = 10.0
"""Seconds that running answers may take when the server shuts down."""


class ListenError(GGPlugError, OSError):
    """The server cannot listen on an address; ``got``: host and port."""


class Server(uvicorn.Server):
    """Serves a model, several, or copies of one, until a signal or :meth:`stop`.

    Then new requests get the status 503, and the server ends when the running answers have ended.  After ``patience``
    seconds, or at a second signal, it cancels them, and their clients get an error.
    """

    def __init__(
        self,
        service: Service | Models | Replicas,
        rules: Rules | None = None,
        *,
        patience: float = PATIENCE,
        log_requests: bool = False,
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
            limit_concurrency=connections.allowed(service.most_inside + connections.SPARE) + 1,
        )
        super().__init__(config)
        self.service = service
        self._patience = patience

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts to listen; from now on models may be released that are not used."""
        asyncio.get_running_loop().set_exception_handler(connections.Complaints())
        await super().startup(sockets)
        self.service.rest()

    def stop(self) -> None:
        """Shuts the server down; any thread may call this."""
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Shuts the server down at the first signal, and at once at the second; the exit code is 0."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends first the answers, then the connections."""
        await self.service.drain(self._patience, lambda: self.force_exit)
        await asyncio.sleep(TICK)  # so that those whose requests were cancelled get their errors
        await super().shutdown(sockets)


@contextmanager
def listening(hosts: Sequence[str], port: int) -> Iterator[list[socket.socket]]:
    """A block with listening sockets, one for each address, on the same port.  Raises ListenError."""
    with ExitStack() as opened:
        found: list[socket.socket] = []
        for host in hosts:
            chosen = found[0].getsockname()[1] if found else port
            found.append(opened.enter_context(listen(host, chosen)))
        yield found


def listen(host: str, port: int) -> socket.socket:
    """Creates a listening socket; port 0 chooses a free port.  Raises ListenError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=512)
    except (OSError, UnicodeError) as error:  # UnicodeError: an invalid host name
        reason = str(getattr(error, "strerror", None) or error).partition(" (while attempting")[0]
        raise ListenError(
            f"cannot listen on {host}, port {port}: {reason}",
            got=(host, port),
            remedy="use an address of this machine for --host, and a free port for --port (0 chooses one)",
        ) from None


def run(server: Server, *listening: socket.socket) -> None:
    """Runs the server in this thread until it ends."""
    asyncio.run(server.serve(sockets=list(listening)))
