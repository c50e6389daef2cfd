"""Server-sent events, and the detection of clients that disconnect before the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"


def json_of(data: Any) -> bytes:
    """JSON.  Raises ValueError for NaN and infinity, which JSON cannot represent."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")


def event(data: Mapping[str, Any]) -> bytes:
    """An event with a JSON object.  Raises ValueError as :func:`json_of` does."""
    return b"data: " + json_of(data) + b"\n\n"


@asynccontextmanager
async def watched(receive: Receive, leave: Callable[[], None]) -> AsyncIterator[None]:
    """A block in which ``leave`` is called if the client disconnects.  The request body must have been read."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        leave()

    task = asyncio.create_task(watch())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class EventStream(Response):
    """A response of server-sent events, sent as they come.

    ``leave``: called if the client disconnects; ``events`` may then raise any exception.  ``close``: awaited at the end
    in any case.
    """

    def __init__(
        self,
        events: AsyncIterator[bytes],
        leave: Callable[[], None],
        close: Callable[[], Awaitable[None]],
        media_type: str = "text/event-stream",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.media_type = media_type
        self.init_headers({"Cache-Control": "no-store", "X-Accel-Buffering": "no", **(headers or {})})
        self._events = events
        self._leave = leave
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with watched(receive, self._leave):
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                async for data in self._events:
                    await send({"type": "http.response.body", "body": data, "more_body": True})
                    await asyncio.sleep(0)  # the event loop notices a lost connection before the next event
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await self._close()


def named_event(name: str, data: Mapping[str, Any]) -> bytes:
    """An event with a name.  Raises ValueError as :func:`json_of` does."""
    return b"event: " + name.encode() + b"\n" + event(data)
