"""Bodies of requests on their way in: how long they may be, how long they may take, and what they hold together."""

from __future__ import annotations

import asyncio
import time

from starlette.requests import Request
from starlette.types import Message

from ggplug_models.serve.answers import ClientDisconnected
from ggplug_models.serve.problems import Problem

BODY_SECONDS = 60.0
"""How long a body may take to arrive."""

PAUSE_SECONDS = 10.0
"""How long a body may pause while it arrives."""

SMALL = 64 << 10
"""Bytes that a body may have without regard to the others."""

LARGE_BODIES = 8
"""Bodies of the largest length whose bytes may be held at once while they arrive."""


class Incoming:
    """Reads bodies of at most ``limit`` bytes.

    Bodies that arrive slowly take no place of requests.  They hold memory, though: what they have beyond :data:`SMALL`
    bytes is at most :data:`LARGE_BODIES` times the limit, of all together.  ``reading``: bodies that have not arrived
    as a whole.  ``held``: their bytes beyond that.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held = 0
        self.reading = 0

    async def read(self, request: Request) -> bytes:
        """The body of a request.  Raises Problem for one that is too long, too slow or of another type, and ClientDisconnected."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # which a page from elsewhere cannot send without being asked about first
            raise Problem(415, f"the body has to be application/json, got {kind or 'no Content-Type'!r}")
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
                    raise Problem(429, "too many long requests arrive; try again later", code="rate_limit_exceeded")
                more = message.get("more_body", False)
            return bytes(parts)
        finally:
            self.reading -= 1
            self.held -= held

    def _too_long(self) -> Problem:
        return Problem(413, f"the body may have {self._limit} bytes", code="body_too_long")


async def _within(request: Request, end: float) -> Message:
    """The next part of a body.  Raises Problem for one that does not come in time."""
    seconds = min(PAUSE_SECONDS, max(end - time.monotonic(), 0))
    try:
        async with asyncio.timeout(seconds):
            return await request.receive()
    except TimeoutError:
        raise Problem(
            408, f"the body did not arrive: it may pause for {PAUSE_SECONDS:g} seconds and take {BODY_SECONDS:g} in all"
        ) from None
