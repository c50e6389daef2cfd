"""Responses that go on when their client disconnects, and that can be read again: ``/v1/stream``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ggplug_models.serve.apis.errors import response_of
from ggplug_models.serve.problems import Problem

PATH = "/v1/stream"
HEADER = "x-conversation-id"

MOST = 32
"""Maximum number of recorded responses; the oldest one is forgotten for another one."""

MOST_BYTES = 4 << 20
"""Maximum size of a recorded response; a longer one cannot be read again."""

SECONDS = 300.0
"""How long a response can be read after its end."""

LONGEST_NAME = 256


class Recorded:
    """A response as it comes.

    ``begin``: its status and headers; None: it has not begun.  ``kept``: whether it can be read again; otherwise only
    what its readers have still to send is held.
    """

    def __init__(self) -> None:
        self.begin: Message | None = None
        self.kept = True
        self.ended = False
        self._body = bytearray()
        self._dropped = 0
        self._places: dict[object, int] = {}
        self.forgetting: asyncio.TimerHandle | None = None
        self.stopped = asyncio.Event()
        self._changed = asyncio.Event()

    def add(self, data: bytes) -> None:
        """Adds to the body."""
        self._body += data
        if len(self._body) > MOST_BYTES:
            self.kept = False
        self._drop()

    @contextmanager
    def reader(self, place: int) -> Iterator[AsyncIterator[bytes]]:
        """A block for one that sends the body: its pieces from a place on, as they come, until the end."""
        reader = object()
        self._places[reader] = place
        try:
            yield self._pieces(reader)
        finally:
            del self._places[reader]
            self._drop()

    async def _pieces(self, reader: object) -> AsyncIterator[bytes]:
        while True:
            data = bytes(self._body[max(self._places[reader] - self._dropped, 0) :])
            if data:
                yield data
                self._places[reader] += len(data)
                self._drop()
            elif self.ended:
                return
            else:
                await self.more()

    def _drop(self) -> None:
        """Drops what all readers have sent, if the response is not kept."""
        if not self.kept:
            end = self._dropped + len(self._body)
            first = min(self._places.values(), default=end)
            del self._body[: max(first - self._dropped, 0)]
            self._dropped = end - len(self._body)

    def changed(self) -> None:
        """Wakes those who wait for more."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def more(self) -> None:
        """Waits until something was recorded, or the response has ended."""
        await self._changed.wait()


class Streams:
    """ASGI middleware that records responses to requests with ``X-Conversation-Id``, by its value.

    Such a request goes on when its client disconnects; ``DELETE /v1/stream?conv_id=VALUE`` ends it.  ``GET`` of the
    same path gives the response from the byte ``from`` on, also while it is generated.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._recorded: dict[str, Recorded] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["path"] == PATH and scope["method"] in ("GET", "DELETE"):
                await self._answer(scope, receive, send)
            elif scope["method"] == "POST" and (name := Headers(scope=scope).get(HEADER)):
                await self._send(self._record(name, scope, receive), 0, send)
            else:
                await self._app(scope, receive, send)
        except Problem as problem:
            await response_of(problem, scope["path"])(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = QueryParams(scope["query_string"])
        name, place = asked.get("conv_id", ""), asked.get("from", "0")
        if scope["method"] == "DELETE":
            self._forget(name, stop=True)
            await Response(status_code=204)(scope, receive, send)
            return
        if not (place.isascii() and place.isdecimal() and len(place) <= len(str(MOST_BYTES))):
            raise Problem(400, "from must be a number of bytes", param="from", code="invalid_value")
        found = self._recorded.get(name)
        if found is None or not found.kept:
            raise Problem(404, f"there is no stream {name!r:.200}", param="conv_id", code="stream_not_found")
        if found.begin is None:
            raise Problem(503, "the stream has not begun; try again later", code="stream_not_begun")
        await self._send(found, int(place), send)

    async def _send(self, recorded: Recorded, place: int, send: Send) -> None:
        """Sends a response from a place of its body on.  Raises Problem if it was stopped before it began."""
        with recorded.reader(place) as pieces:
            while recorded.begin is None:
                if recorded.ended:
                    raise Problem(400, "the request was cancelled", code="cancelled")
                await recorded.more()
            headers = MutableHeaders(raw=list(recorded.begin["headers"]))
            if "content-length" in headers:
                headers["content-length"] = str(max(int(headers["content-length"]) - place, 0))
            await send({**recorded.begin, "headers": headers.raw})
            async for data in pieces:
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _record(self, name: str, scope: Scope, receive: Receive) -> Recorded:
        """Begins to answer a request, and to record the response."""
        if len(name) > LONGEST_NAME:
            raise Problem(400, f"{HEADER} has at most {LONGEST_NAME} characters", code="invalid_value")
        self._forget(name, stop=True)
        kept = [other for other, each in self._recorded.items() if each.kept]
        if len(kept) >= MOST:
            self._forget(kept[0])
        recorded = self._recorded[name] = Recorded()
        task = asyncio.get_running_loop().create_task(self._run(name, recorded, scope, receive))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return recorded

    async def _run(self, name: str, recorded: Recorded, scope: Scope, receive: Receive) -> None:
        reads = True

        async def receiving() -> Message:
            nonlocal reads
            if reads:
                message = await receive()
                reads = message.get("more_body", False)
                return message
            await recorded.stopped.wait()
            return {"type": "http.disconnect"}

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                recorded.begin = message
            else:
                recorded.add(message.get("body", b""))
            recorded.changed()

        try:
            await self._app(scope, receiving, sending)
        finally:
            recorded.ended = True
            recorded.changed()
            if self._recorded.get(name) is recorded:
                seconds = SECONDS if recorded.kept else 0
                recorded.forgetting = asyncio.get_running_loop().call_later(seconds, self._forget, name)

    def _forget(self, name: str, *, stop: bool = False) -> None:
        """Forgets the response that is recorded under a name; a request that is not to ``stop`` keeps the name."""
        found = self._recorded.get(name)
        if found is None:
            return
        found.kept = False
        if stop:
            found.stopped.set()
        if stop or found.ended:
            del self._recorded[name]
            if found.forgetting is not None:
                found.forgetting.cancel()
