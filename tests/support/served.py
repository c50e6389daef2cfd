"""A live server on this machine for tests, whose computations a test can hold."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ggplug_models.serve.app import Rules
from ggplug_models.serve.models import Models
from ggplug_models.serve.server import Server, listen, run
from ggplug_models.serve.service import Service, serving

WAIT = 60
"""Seconds after which a test gives up."""


class Gate:
    """Holds the steps of a session: each needs a permit while it is shut."""

    def __init__(self, session: Any) -> None:
        self.begun = threading.Semaphore(0)
        self.batches: list[dict[int, int]] = []
        self._permits = threading.Semaphore(0)
        self._shut = threading.Event()
        self._decode = session.decode
        session.decode = self.decode

    def decode(self, batch: Any, *outputs: Any, **how: Any) -> Any:
        if self._shut.is_set():
            self.batches.append({seq: len(tokens) for seq, tokens in batch.items()})
            self.begun.release()
            assert self._permits.acquire(timeout=WAIT)
        return self._decode(batch, *outputs, **how)

    def shut(self) -> None:
        self._shut.set()

    def let(self, steps: int = 1) -> None:
        """Lets some more steps through."""
        self._permits.release(steps)

    def open(self) -> None:
        self._shut.clear()
        self._permits.release(1000)

    def wait(self) -> None:
        """Waits until a step is held."""
        assert self.begun.acquire(timeout=WAIT)


class Live:
    """A server, where it listens, and what it computes with."""

    service: Service

    def __init__(self, service: Service | Models, server: Server, port: int) -> None:
        self.server, self.port = server, port
        self.url = f"http://127.0.0.1:{port}/v1"
        self.gate = None
        if isinstance(service, Service):
            self.service = service
            self.gate = None if service.writer is None else Gate(service.writer.session)

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], Any]:
        """Status, headers in small letters, and body, which is taken for JSON where it says so."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT)
        try:
            data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            given = {"Content-Type": "application/json"} if body is not None else {}
            connection.request(method, path, data, {**given, **(headers or {})})
            response = connection.getresponse()
            raw = response.read()
            found = {name.lower(): value for name, value in response.getheaders()}
            is_json = found.get("content-type", "") == "application/json"
            return response.status, found, json.loads(raw) if is_json else raw
        finally:
            connection.close()


@contextmanager
def served(model: Any, rules: Rules | None = None, *, patience: float = 10, **settings: Any) -> Iterator[Live]:
    """A server of a model, until the end of the block."""
    with serving(model, "tiny", **settings) as service, running(service, rules, patience=patience) as live:
        yield live


@contextmanager
def running(service: Service | Models, rules: Rules | None = None, *, patience: float = 10) -> Iterator[Live]:
    """A server of a service, or of several models, until the end of the block."""
    with listen("127.0.0.1", 0) as listening:
        server = Server(service, rules, patience=patience)
        live = Live(service, server, listening.getsockname()[1])
        thread = threading.Thread(target=run, args=(server, listening), name="served")
        thread.start()
        try:
            yield live
        finally:
            if live.gate is not None:
                live.gate.open()
            server.stop()
            thread.join(WAIT)
            assert not thread.is_alive()


def port_of(process: subprocess.Popen[str]) -> int:
    """The port of ``ggplug serve`` in a process, when it listens."""
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"http://127\.0\.0\.1:(\d+)/", line):
            return int(found[1])
    raise AssertionError("the server ended")
