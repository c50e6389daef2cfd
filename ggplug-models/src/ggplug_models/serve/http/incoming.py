"""Reads request bodies, with limits of their size, their duration, and their memory in total."""

from __future__ import annotations

import asyncio
import contextlib
import time

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ggplug_models.serve.answers import ClientDisconnected
from ggplug_models.serve.problems import Problem

BODY_SECONDS = 60.0
"""Timeout for a whole body."""

PAUSE_SECONDS = 10.0
"""Timeout between two parts of a body."""

SMALL = 64 << 10
"""Bytes of a body that do not count for the limit of all bodies."""

LARGE_BODIES = 8
"""Number of bodies of maximum size whose bytes may be held at the same time."""


REST_SECONDS = 2.0
"""Timeout for the rest of a body whose request was answered before its end."""

REST_BYTES = 64 << 20
"""Maximum size of that rest."""


class RestOfBody:
    """Reads on, after a response that came before the end of its request's body, and drops what it reads.

    Closing a connection with unread bytes resets it, and a client that sends its whole body first would then lose the
    response.  The response is sent first; the rest is limited by :data:`REST_BYTES` and :data:`REST_SECONDS`.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers", ()))
        unread = b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"

        async def receiving() -> Message:
            nonlocal unread
            message = await receive()
            unread = unread and message.get("more_body", False)
            return message

        async def sending(message: Message) -> None:
            last = message["type"] == "http.response.body" and not message.get("more_body", False)
            if last and unread:
                await send({**message, "more_body": True})
                if b"expect" not in headers:  # such a client sends no body after the response
                    await rest()
                message = {"type": "http.response.body", "body": b"", "more_body": False}
            await send(message)

        async def rest() -> None:
            size = 0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REST_SECONDS):
                    while unread and size < REST_BYTES:
                        size += len((await receiving()).get("body", b""))

        await self._app(scope, receiving, sending)


class Incoming:
    """Reads request bodies of at most ``limit`` bytes.

    Incomplete bodies do not count as requests, but they need memory.  What they have beyond :data:`SMALL` bytes each is
    limited to :data:`LARGE_BODIES` times ``limit``, in total.  ``reading``: number of incomplete bodies.  ``held``:
    their bytes that count for the limit.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held = 0
        self.reading = 0

    async def read(self, request: Request) -> bytes:
        """Reads a body.

        Raises Problem for one that is too long or too slow, or that a web page sends without saying that it is JSON;
        ClientDisconnected.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        # A page of another site can send JSON only after a CORS preflight, and other types without one.  Browsers name
        # the origin of each page that sends a body; programs such as curl do not.
        if kind != "application/json" and "origin" in request.headers:
            raise Problem(415, f"the Content-Type must be application/json, got {kind or 'none'!r}")
        length = request.headers.get("content-length", "")
        if length.isdecimal() and (len(length) > 18 or int(length) > self._limit):
            raise self._too_long()
        parts = bytearray()
        held = 0
        self.reading += 1
        try:
            end = time.monotonic() + BODY_SECONDS
            more = True
            while more:
                message = await _within(request, end)
                if message["type"] == "http.disconnect":
                    raise ClientDisconnected
                parts += message.get("body", b"")
                if len(parts) > self._limit:
                    raise self._too_long()
                grown = max(len(parts) - SMALL, 0) - held
                held += grown
                self.held += grown
                if grown and self.held > LARGE_BODIES * self._limit:
                    raise Problem(
                        429,
                        "the server is receiving too many large requests; try again later",
                        code="rate_limit_exceeded",
                    )
                more = message.get("more_body", False)
            return bytes(parts)
        finally:
            self.reading -= 1
            self.held -= held

    def _too_long(self) -> Problem:
        return Problem(413, f"the request body exceeds the limit of {self._limit} bytes", code="body_too_long")


async def _within(request: Request, end: float) -> Message:
    """The next part of a body.  Raises Problem if it does not arrive in time."""
    seconds = min(PAUSE_SECONDS, max(end - time.monotonic(), 0))
    try:
        async with asyncio.timeout(seconds):
            return await request.receive()
    except TimeoutError:
        raise Problem(
            408,
            f"timeout of the request body: {PAUSE_SECONDS:g} seconds without data, or {BODY_SECONDS:g} in total",
        ) from None


def again(raw: bytes, receive: Receive) -> Receive:
    """Receives a body that was read already, then what follows."""
    parts: list[Message] = [{"type": "http.request", "body": raw, "more_body": False}]

    async def receiving() -> Message:
        return parts.pop() if parts else await receive()

    return receiving
